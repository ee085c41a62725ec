"""When a line was written that says no time itself: at the time that the nearest line above it says."""

from __future__ import annotations

from ascendtune.check.explain.log import line

_LOOK_BACK = 200
"""Lines in which the time of a line without one is looked for."""


class LineTimes:
    """Times of the lines of a log, which is read in blocks; each line is looked at once."""

    def __init__(self) -> None:
        self._last: float | None = None
        """The time that was found last; it holds until a line says another."""
        self.begin_block()

    def begin_block(self) -> None:
        """Lines are counted from 0 again."""
        self._looked_at = -1

    def time_of(self, lines: list[bytes], index: int) -> float | None:
        """Seconds, as `line.time_of` has them, of line `index` of the block `lines`; None where none was found.

        Args:
            index: not below that of an earlier call for this block.
        """
        first = max(0, index - _LOOK_BACK, self._looked_at + 1)
        for text in reversed(lines[first : index + 1]):
            if b":" in text and (time := line.time_of(text[:200].decode(errors="replace"))) is not None:
                self._last = time
                break
        self._looked_at = index
        return self._last
