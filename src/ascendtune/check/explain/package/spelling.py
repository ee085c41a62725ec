"""Whether a name is a misspelling of another one, and not another correct name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_LEAST_LETTERS = 5
_LEAST_SUBSTITUTED, _LEAST_MOVED = 4, 5
"""Fewest letters of the differing word in a lower-case name: names of devices (npu, xpu) differ in one letter, too."""
_MOST_CAPITALS = 2
"""Most letters that differ only in case; with more, both spellings are in use (LLaMA, Llama)."""
_LEAST_SUBSTITUTED_IN_CLASS, _LEAST_MOVED_IN_CLASS = 8, 6
"""The same for names of classes: model families (Mistral, Mixtral; Olmo, Olmoe) differ in one letter, too."""


def meant(name: str, known: Iterable[str]) -> str:
    """The one of `known` that `name` misspells; empty if there is none, or more than one."""
    candidates = {each for each in known if is_misspelt(name, each)}
    return candidates.pop() if len(candidates) == 1 else ""


def is_misspelt(name: str, right: str) -> bool:
    """Whether `name` differs from `right` by one wrong, missing, doubled or swapped letter, or by capitals and
    underscores within it.

    Names that differ in digits, abbreviations or short words may both be correct.
    """
    if name == right or min(len(name), len(right)) < _LEAST_LETTERS or name.startswith("_") != right.startswith("_"):
        return False
    if _plain(name) == _plain(right):
        differing = sum(one != other for one, other in zip(name, right, strict=False))
        return len(name) != len(right) or differing <= _MOST_CAPITALS
    begin = _shared(name, right)
    end = _shared(name[begin:][::-1], right[begin:][::-1])
    one, other = name[begin : len(name) - end], right[begin : len(right) - end]
    if not (one + other).isalpha() or not (one + other).islower():
        return False
    is_substituted = len(one) == len(other) == 1
    is_moved = len(one) + len(other) == 1 or (len(one) == 2 and one == other[::-1])
    word = min(_word_at(name, begin), _word_at(right, begin), key=len)
    if right.islower():
        return len(word) >= (_LEAST_SUBSTITUTED if is_substituted else _LEAST_MOVED) and (is_substituted or is_moved)
    least = _LEAST_SUBSTITUTED_IN_CLASS if is_substituted else _LEAST_MOVED_IN_CLASS
    return len(word) >= least and (is_substituted or is_moved)


def _shared(one: str, other: str) -> int:
    """Length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _word_at(name: str, place: int) -> str:
    """Word of a name that contains, or ends before, the character at `place`."""
    words = _WORD.finditer(name)
    return next((word[0] for word in words if word.start() <= place < word.end()), _last_word(name[:place]))


def _last_word(name: str) -> str:
    return next(reversed(_WORD.findall(name)), "")
