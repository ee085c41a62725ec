"""Times of lines without one: the time of the nearest line above."""

from __future__ import annotations

from ascendtune.check.explain.log import line

_LOOK_BACK = 200
"""Lines that are searched for the time of a line without one."""


class LineTimes:
    """Times of the lines of a log that is read in blocks; each line is searched once."""

    def __init__(self) -> None:
        self._last: float | None = None
        """Time that was found last; it applies until a line has another."""
        self.begin_block()

    def begin_block(self) -> None:
        """Restart the line numbers at 0."""
        self._looked_at = -1

    def time_of(self, lines: list[bytes], index: int) -> float | None:
        """Time in seconds, as from `line.time_of`, of line `index` of the block `lines`; None if none was found.

        Args:
            index: at least that of the last call for this block.
        """
        first = max(0, index - _LOOK_BACK, self._looked_at + 1)
        for text in reversed(lines[first : index + 1]):
            if b":" in text and (time := line.time_of(text[:200].decode(errors="replace"))) is not None:
                self._last = time
                break
        self._looked_at = index
        return self._last
