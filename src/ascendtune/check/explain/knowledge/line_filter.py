"""Selects the lines of a block that are worth reading. Most differ from earlier ones only in digits and are skipped."""

from __future__ import annotations

from itertools import compress

from ascendtune.check.explain.knowledge.matcher import ASCEND, Matcher

_DIGITS = b"0123456789abcdef"
"""Decimal and hexadecimal digits: counters, sizes, addresses."""
_SHAPES_KEPT = 50_000
_REPETITIVE = 0.2
"""Share of lines with a known shape, below which shapes are not worth their cost."""
_BLOCKS_WITHOUT_SHAPES = 16
"""Blocks that are then read without shapes."""
_REPEATS_READ = 300
"""Lines of one shape (equal except for digits) that are read; later ones are useless for finding the first cause."""


class LineFilter:
    def __init__(self, matcher: Matcher) -> None:
        self.always = ASCEND
        """Words whose lines are always worth reading."""
        self._matcher = matcher
        self._boring: set[bytes] = set()
        self._without_shapes = 0
        self._read: dict[bytes, int] = {}

    def worth_reading(self, block: bytes, lines: list[bytes]) -> list[int]:
        """Indices of the lines to read: those with words of trouble, and at most `_REPEATS_READ` of each shape."""
        if self._without_shapes:
            self._without_shapes -= 1
            worth = compress(range(len(lines)), self._matcher.worth_a_look(block, self.always))
        else:
            worth = compress(*self._of_new_shapes(block, lines))
        chosen = []
        for index in worth:
            shape = lines[index].translate(None, _DIGITS)
            read = self._read.get(shape, 0)
            self._read[shape] = read + 1
            if read < _REPEATS_READ:
                chosen.append(index)
            else:
                # From now on it is skipped like lines without words of trouble, which is faster.
                self._boring.add(shape)
        if len(self._read) > _SHAPES_KEPT:
            self._read.clear()
        return chosen

    def _of_new_shapes(self, block: bytes, lines: list[bytes]) -> tuple[list[int], list[bool]]:
        """(indices of lines whose shape is not known as worthless, whether each is worth reading)."""
        shapes = block.translate(None, _DIGITS).split(b"\n")[: len(lines)]
        boring, is_first = self._boring, not self._boring
        new = [index for index, shape in enumerate(shapes) if shape not in boring]
        worth = self._matcher.worth_a_look(b"\n".join([lines[index] for index in new]), self.always)
        boring.update([shapes[index] for index, look in zip(new, worth, strict=False) if not look])
        if len(boring) > _SHAPES_KEPT:
            boring.clear()
        if not is_first and len(lines) - len(new) < _REPETITIVE * len(lines):
            self._without_shapes = _BLOCKS_WITHOUT_SHAPES
        return new, worth
