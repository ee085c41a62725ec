"""When a line was written that says no time itself: at the time that the nearest line above it says."""

from __future__ import annotations

from ascendtune.check.explain import line

_LOOK_BACK = 200
"""Lines in which the time of a line without one is looked for."""


class LineTimes:
    """Times of the lines of a log, which is read in blocks; each line is looked at once."""

    def __init__(self) -> None:
        self._last: float | None = None
        """The time that was told last; it holds for lines far below, too, and for the next block's."""
        self.begin_block()

    def begin_block(self) -> None:
        """Lines are counted from 0 again."""
        self._looked_at = self._timed = -1
        self._time: float | None = None

    def time_of(self, lines: list[bytes], index: int) -> float | None:
        """Seconds, as `line.time_of` has them, of line `index` of the block `lines`; None where none is told.

        Args:
            index: not below that of an earlier call for this block.
        """
        first = max(0, index - _LOOK_BACK)
        for each in range(index, max(first, self._looked_at + 1) - 1, -1):
            text = lines[each]
            if b":" in text and (time := line.time_of(text[:200].decode(errors="replace"))) is not None:
                self._timed, self._time = each, time
                break
        self._looked_at = index
        if self._time is not None and self._timed >= first:
            self._last = self._time
        return self._last
