"""Excerpt of logs on a few pages: the lines around the failures, the beginning, the end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.scan import Scan
from ascendtune.check.explain.log.rotation import Parts
from ascendtune.check.explain.log.source import STDIN
from ascendtune.core.mask import without_secrets
from ascendtune.core.terminal_text import plain

_ABOVE, _BELOW = 40, 20
"""Lines around a failure: a traceback is above its exception, CANN's reason below it."""
_FIRST, _LAST = 15, 40
"""Lines at the beginning, with versions and the command; and at the end."""
_MOST_FAILURES = 12
_LONGEST = 500
"""Most characters of a line; both ends of a longer one are kept."""
_MOST_LOGS = 32
_LEAST_SHARE = 400
"""Fewest characters for a log: its last line or two."""
_DIGITS = re.compile(r"\d+")


def excerpt(scans: Sequence[Scan], failures: Sequence[Event], most_characters: int) -> str:
    """Numbered lines of all logs, below their names, with notes on omitted lines.

    Args:
        failures: the most important first: the lines around them are kept first.
        most_characters: approximate limit for the whole.
    """
    logs = _by_failures(scans, failures)
    rest = len(scans) - len(logs)
    parts, left = list[str](), most_characters
    for index, scan in enumerate(logs):
        behind = (len(logs) - index - 1) * _LEAST_SHARE
        part = _of_log(scan, [each for each in failures if each.source == scan.name], max(left - behind, _LEAST_SHARE))
        left -= len(part)
        parts.append(part)
    return "\n".join([*parts, *([f"({rest} more logs are left out)"] if rest else [])])


def _by_failures(scans: Sequence[Scan], failures: Sequence[Event]) -> list[Scan]:
    """Logs with failures, in the order of the failures, then the others."""
    order = {name: place for place, name in enumerate(dict.fromkeys(each.source for each in failures))}
    return sorted(scans, key=lambda scan: order.get(scan.name, len(order)))[:_MOST_LOGS]


def _of_log(scan: Scan, failures: Sequence[Event], most_characters: int) -> str:
    first, last = scan.lines - scan.lines_read + 1, scan.lines
    spans = [(each.number - _ABOVE, each.number + _BELOW) for each in failures[:_MOST_FAILURES]]
    spans = [*spans[:1], (last - _LAST + 1, last), (first, first + _FIRST - 1), *spans[1:], (first, last)]
    ranges = [range(max(begin, first), min(end, last) + 1) for begin, end in spans]
    # The last span is the whole log, which is used only if it may fit.
    ranges = ranges if scan.bytes <= 2 * most_characters else ranges[:-1]
    heading = f"--- {scan.name} ({scan.lines_read:,} lines)"
    kept = _as_many_as_fit(dict(_read(scan, ranges, failures)), ranges, most_characters - len(heading))
    return "\n".join([heading, *_numbered(kept, first, last)])


def _as_many_as_fit(lines: dict[int, str], ranges: Iterable[range], most_characters: int) -> dict[int, str]:
    """Keep span by span; of one that does not fit, the lines at its end, because an exception is at the end."""
    kept = dict[int, str]()
    left = most_characters
    for span in ranges:
        for number in reversed(span):
            if number in kept or number not in lines:
                continue
            left -= len(lines[number]) + 8
            if left < 0:
                return kept
            kept[number] = lines[number]
    return kept


def _read(scan: Scan, ranges: Iterable[range], failures: Iterable[Event]) -> Iterator[tuple[int, str]]:
    numbers = set[int]().union(*ranges)
    last = max(numbers, default=0)
    for number, line in _kept_of_stdin(scan, failures) if scan.name == STDIN else _lines(scan):
        if number > last:
            return
        if number in numbers:
            # Before shortening: a secret that is cut in two is not recognised.
            yield number, _shortened(without_secrets(plain(line).rstrip()))


def _lines(scan: Scan) -> Iterator[tuple[int, str]]:
    number = scan.lines - scan.lines_read
    for block in Parts(scan.parts.names, scan.start).blocks():
        lines = block.split(b"\n")
        for line in lines if lines[-1] else lines[:-1]:
            number += 1
            yield number, line.decode(errors="replace")


def _kept_of_stdin(scan: Scan, failures: Iterable[Event]) -> Iterator[tuple[int, str]]:
    """Beginning, end, and the lines of failures of standard input, which cannot be read again."""
    last = scan.last_lines
    texts = {each.number: each.text for each in failures}
    texts |= dict(enumerate(scan.head.removesuffix("\n").split("\n"), 1))
    # The first of the last lines may be cut, and contain only the end of a secret.
    texts |= dict(last[len(last) not in (1, scan.lines) :])
    yield from sorted(texts.items())


def _shortened(line: str) -> str:
    half = _LONGEST // 2
    return line if len(line) <= _LONGEST else f"{line[:half]} […] {line[-half:]}"


def _numbered(lines: dict[int, str], first: int, last: int) -> Iterator[str]:
    """Numbered lines; those that differ from the line before only in numbers are counted."""
    before, shape, same = first - 1, "", 0
    for number in [*sorted(lines), last + 1]:
        line = lines.get(number, "")
        is_next = number == before + 1
        if number <= last and is_next and line.strip() and _DIGITS.sub("0", line) == shape:
            before, same = number, same + 1
            continue
        if same:
            yield f"({same} more such lines)"
        if not is_next:
            yield f"({number - before - 1} lines left out)"
        if number <= last:
            yield f"{number}: {line}"
        before, shape, same = number, _DIGITS.sub("0", line), 0
