"""Which lines of a block are worth reading. Most differ from earlier ones in digits only, and are passed over."""

from __future__ import annotations

from itertools import compress

from ascendtune.check.explain.knowledge.matcher import ASCEND, Matcher

_DIGITS = b"0123456789abcdef"
"""Decimal and hexadecimal ones: counters, sizes, addresses."""
_SHAPES_KEPT = 50_000
_REPETITIVE = 0.2
"""Share of lines known by their shape below which shapes are not worth their price,"""
_BLOCKS_WITHOUT_SHAPES = 16
"""for so many blocks."""
_REPEATS_READ = 300
"""Lines of one shape (the same but for digits) that are read closely; later ones tell nothing about a first cause."""


class LineFilter:
    def __init__(self, matcher: Matcher) -> None:
        self.always = ASCEND
        """Words whose lines are worth reading whatever they say."""
        self._matcher = matcher
        self._boring: set[bytes] = set()
        self._without_shapes = 0
        self._read: dict[bytes, int] = {}

    def worth_reading(self, block: bytes, lines: list[bytes]) -> list[int]:
        """The lines to look at: those with words of trouble, and of each shape only so many."""
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
                # From now on it is passed over like lines without words of trouble, which costs less.
                self._boring.add(shape)
        if len(self._read) > _SHAPES_KEPT:
            self._read.clear()
        return chosen

    def _of_new_shapes(self, block: bytes, lines: list[bytes]) -> tuple[list[int], list[bool]]:
        """(lines that no earlier one of no worth is like, whether each has words of trouble)."""
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
