"""Failed tests in the reports of pytest and unittest, whose lines are not marked as errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

PYTEST = r"(?:FAILED|ERROR) \S+\.py(?:::.{1,200}?)? - (?=[\w.]+(?:Error|Exception|Exit)\b)"
"""Text before an exception in pytest's summary."""
_TEST = re.compile(
    r"(?:FAILED|ERROR) \S+\.py(?:\b|::)|(?:FAIL|ERROR): \w+ \([\w.]+\)$|"
    r"[^\s:]+\.py::\S.* (?:FAILED|ERROR)(?: +\[ *\d+%\])?$"
)
_SUMMARY = re.compile(
    r"(?:=+ )?(?:\d+ [a-z]+, )*[1-9]\d* (?:failed|errors?)(?:, \d+ [a-z]+)* in [\d.]+s\b(?: \([\d:]+\))?(?: =+)?$|"
    r"FAILED \(\w+=\d|!+ Interrupted: \d+ errors? "
)
_PLACE = re.compile(r"\S+\.py:\d+: (?P<type>[\w.]*(?:Error|Exception|Exit))$")
_REASON = re.compile(r"E {3,}(?P<words>\S.*)")


def failed_test(messages: list[str], last_lines: int) -> tuple[int, str]:
    """The first failed test, or its reason, if a log ends with a report of pytest or unittest.

    Args:
        last_lines: lines at the end of `messages` in which the report is searched for.

    Returns:
        Index of the line, and its text; (0, "") if there is none.
    """
    last = messages[-last_lines:]
    if any(map(_PLACE.match, last)):
        return next(_reasons(messages), (0, ""))
    if not any(_TEST.match(line) or _SUMMARY.match(line) for line in last):
        return 0, ""
    tests = ((index, line.strip()) for index, line in enumerate(messages) if _TEST.match(line))
    summaries = ((index, line.strip(" =!")) for index, line in enumerate(messages) if _SUMMARY.match(line))
    return next(chain(_reasons(messages), tests, summaries), (0, ""))


def _reasons(messages: list[str]) -> Iterator[tuple[int, str]]:
    """First line that pytest prints for an assertion, with the exception of its place."""
    first = next(
        ((index, match["words"]) for index, line in enumerate(messages) if (match := _REASON.match(line))), None
    )
    if first is not None:
        place = next(filter(None, map(_PLACE.match, messages[first[0] :])), None)
        yield first[0], f"{place['type']}: {first[1]}" if place else first[1]
