"""The complaint in the output of a build: the row of a compiler, linker or build tool for which the build ended."""

from __future__ import annotations

import re
from collections.abc import Iterator

_WRAPPER = re.compile(
    r"ninja: build stopped|\[end of output\]|\bg?make(?:\[\d+\])?: \*\*\* |did not complete successfully: exit|"
    r"returned a non-zero code: \d|Error building extension|ERROR: Failed building wheel|[Bb]uild failed\b|"
    r"subprocess-exited-with-error|error: command '\S+' failed with exit|Command '\['(?:ninja|cmake|make)'"
)
"""The report of a program that ran the build."""
_ABOVE = 60
"""Most rows above such a report that are searched."""
_PREFIX = re.compile(r"#\d+ (?:[\d.]+ )?|[ \t>|│]+")
"""Prefix of Docker's BuildKit, and the margins of pip and uv."""
_NO_COMPLAINT = re.compile(
    rf"{_WRAPPER.pattern}|(?:-- |checking |note: |hint: |collect2: error: ld returned|compilation terminated|"
    r"ERROR: (?:Could not build|failed to solve)|Failed to build|error: metadata-generation|× )|"
    r"\bwarning\b|CalledProcessError",
    re.IGNORECASE,
)
_OF_COMPILER = re.compile(
    r"\b(?:fatal )?error(?: (?:C|LNK)\d{4})?: \S|\b(?:nvcc|ptxas)\b.{0,200}\b(?:fatal|error) +: \S|\bcannot find -l\S|"
    r"\bundefined reference to\b|^unable to execute '|\bError: no such instruction"
)
_OF_TOOL = re.compile(
    r"^(?:\w+\.)*\w+(?:Error|Exception): \S|\bERROR: \S|^\[ERROR\] \S|: (?:command )?not found$|"
    r"\bwas not found in the pkg-config search path|\.pyx:\d+:\d+: \S|"
    r"\b(?:cannot|can't|could not|unable to) (?:find|locate|open|load|stat|create|execute|run) \S|"
    r"\d+ errors? detected in the compilation of|No space left on device|"
    r"\bis (?:required|missing|not (?:installed|supported|found))\b"
)
_OF_CMAKE = re.compile(
    r"^(?:#\d+ (?:[\d.]+ )?)?[ \t>|│]*CMake Error at [^\s()]+ \(\w+\):[ \t]*\n"
    r"(?P<message>(?:(?!\s*CMake Error)[^\n]*\n?){1,7})",
    re.MULTILINE,
)
_SENTENCE = re.compile(r"[^.]{3,}(?:\.(?=\s|$)|$)")
_LONGEST = 300
_LONGEST_ROW = 2000
"""Characters of a row that are read: those of a compiler's command are longer."""


def complaint_in(rows: list[str]) -> str:
    """The first complaint of a compiler, else the last one of another tool; empty if there is none."""
    said = [
        row
        for row in (_without_margin(row[:_LONGEST_ROW]) for row in rows)
        if row and _NO_COMPLAINT.search(row) is None
    ]
    first = next(filter(_OF_COMPILER.search, said), "")
    return (first or next(filter(_OF_TOOL.search, reversed(said)), ""))[:_LONGEST]


def complaint_above(text: str) -> str:
    """Complaint above the first report of a program that ran a build; empty if there is none."""
    report = _WRAPPER.search(text)
    if report is None:
        return ""
    return complaint_in(text[: text.rfind("\n", 0, report.start()) + 1].splitlines()[-_ABOVE:])


def complaint_of_cmake(text: str) -> str:
    """First sentence of CMake's first error; empty if there is none."""
    error = _OF_CMAKE.search(text)
    if error is None:
        return ""
    words = " ".join(filter(None, _message_rows(error["message"])))
    sentence = _SENTENCE.match(words)
    return f"CMake Error: {sentence[0] if sentence is not None else words}"[:_LONGEST]


def _message_rows(message: str) -> Iterator[str]:
    """Rows of CMake's message, which are indented, up to its list of calls."""
    for row in message.splitlines():
        words = _without_margin(row)
        if words.startswith(("Call Stack", "--")):
            return
        yield words


def _without_margin(row: str) -> str:
    prefix = _PREFIX.match(row)
    return row[prefix.end() if prefix is not None else 0 :].strip(" \t>|│")
