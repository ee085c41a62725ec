"""The lines above and below a line of a block; if its prefix names a speaker, only those of that speaker."""

from __future__ import annotations

from ascendtune.check.explain.log import level
from ascendtune.check.explain.log.line import Line, read
from ascendtune.check.explain.log.message_lines import text_of

_FAILURES_ABOVE = 10
_SPEAKERS = 64
"""Greatest number of speakers whose lines may alternate: the lines of one are that much further apart."""


class Neighbours:
    """Neighbours of the line at `index`, parsed as `line`."""

    def __init__(self, lines: list[bytes], index: int, line: Line) -> None:
        message = line.message.encode()
        is_prefixed = line.speaker and lines[index].endswith(message)
        self._prefix = lines[index].removesuffix(message) if is_prefixed else b""
        self._has_stamp = not is_prefixed and len(message) < len(lines[index].strip())
        """Whether the line has a prefix that differs from line to line."""
        self._lines, self._index = lines, index

    def below(self, count: int) -> list[str]:
        """At most `count` lines below it, without the prefix; lines of any speaker if its own has no more."""
        first, prefix = self._index + 1, self._prefix
        far = self._lines[first : first + count * _SPEAKERS] if prefix else []
        own = [each.removeprefix(prefix) for each in far if each.startswith(prefix)]
        if own:
            return list(map(text_of, own[:count]))
        rows = list(map(text_of, self._lines[first : first + count]))
        # A person may have typed the line above the prefixed ones that go on with it.
        return [read(row).message for row in rows] if self._has_stamp or (rows and read(rows[0]).speaker) else rows

    @property
    def above(self) -> str:
        """Line above it; empty if there is none."""
        before = self._all_above
        return text_of(before[-1]) if before else ""

    @property
    def code_above(self) -> list[str]:
        """Last two non-empty lines above it, without the prefix."""
        rows = [text_of(each.removeprefix(self._prefix)) for each in self._all_above]
        nearest = [each for each in rows if each.strip()][-2:]
        return [read(each).message for each in nearest] if self._has_stamp else nearest

    @property
    def failure_above(self) -> tuple[int, str]:
        """First of the consecutive lines with words of failure directly above it.

        Returns:
            Its distance in lines, and its text; (0, "") if there is none.
        """
        failure = 0, ""
        for up in range(1, min(self._index, _FAILURES_ABOVE) + 1):
            row = self._lines[self._index - up]
            message = text_of(row.removeprefix(self._prefix)).strip()
            if message and row.startswith(self._prefix):
                if not level.are_last_words(message, message):
                    break
                failure = up, message
        return failure

    @property
    def _all_above(self) -> list[bytes]:
        rows = self._lines[max(0, self._index - _SPEAKERS) : self._index]
        return [each for each in rows if each.startswith(self._prefix)]
