"""Finds the known failures that a line names, among millions of lines that name none."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ascendtune.check.explain.knowledge import KnownFailure
from ascendtune.check.explain.language import say

_WORD = re.compile(rb"[a-z0-9]+")
_WORDS_ONLY = bytes(
    code if chr(code).isascii() and (chr(code).isalnum() or code == 10) else 32 for code in bytes(range(256)).lower()
)
"""For bytes.translate: everything to lower case, and every character but letters, digits and line ends to a blank."""
_TROUBLE = frozenset(
    b"error errors exception traceback critical fatal fail failed failure abort aborted killed null".split()
) | {
    name.lower().encode()
    for name, each in vars(builtins).items()
    if isinstance(each, type) and issubclass(each, BaseException)
}
"""Words of lines that may matter although no entry knows them."""


@dataclass(frozen=True)
class Hit:
    entry: KnownFailure
    length: int
    """Characters of the anchor; the longer one is the more telling one."""
    names: dict[str, str]
    """What the pattern captured."""


class Matcher:
    """Two steps: a line's words tell whether it is worth a look, and which anchors to try on it.

    Each anchor is tried on lines that have two of its words: its longest, or one that is not a word of trouble where it
    has such, for of lines of trouble there are many; and one from within a part, which is whole whatever surrounds the
    anchor. So the longest word of an anchor is whole, too.
    """

    def __init__(self, entries: Iterable[KnownFailure]) -> None:
        self._by_word: dict[bytes, list[tuple[bytes, tuple[bytes, ...], KnownFailure]]] = {}
        self._companions: dict[bytes, set[bytes]] = {}
        for entry in entries:
            for anchor in entry.anchors:
                parts = tuple(part.encode() for part in anchor)
                words = [word for part in parts for word in _WORD.findall(part)]
                longest, tried = max(words, key=len), max(words, key=_narrows)
                whole = [word for part in parts for word in _WORD.findall(part)[1:-1]]
                self._companions.setdefault(longest, set()).add(_other(longest, whole))
                self._by_word.setdefault(tried, []).append((_other(tried, whole), parts, entry))
        self._anchors = frozenset(self._by_word)
        self._words = _TROUBLE.union(self._companions)

    def worth_a_look(self, block: bytes) -> list[bool]:
        """For each line of `block`: does it hold a word of trouble, or two words of an anchor?"""
        are_missing = self._words.isdisjoint
        lines = block.translate(_WORDS_ONLY).split(b"\n")
        return [not are_missing(words := line.split()) and self._is_worth(words) for line in lines]

    def _is_worth(self, words: list[bytes]) -> bool:
        if not _TROUBLE.isdisjoint(words):
            return True
        return any(not self._companions[word].isdisjoint(words) for word in self._words.intersection(words))

    def hits(self, text: str) -> list[Hit]:
        """Everything known that a line speaks of, the best first: what explains most, then the longest anchor."""
        line = text.lower().encode()
        words = frozenset(line.translate(_WORDS_ONLY).split())
        if self._anchors.isdisjoint(words):
            return []
        found: dict[str, Hit] = {}
        for word in self._anchors.intersection(words):
            for other, parts, entry in self._by_word[word]:
                length = _stands_in(parts, line) if other in words else 0
                if not length or (entry.id in found and found[entry.id].length >= length):
                    continue
                match = entry.pattern.search(text) if entry.pattern else None
                if entry.pattern and not match:
                    continue
                found[entry.id] = Hit(entry, length, _names(entry, text, match))
        ranked = sorted(found.values(), key=_rank)
        longest = max(ranked, key=lambda hit: hit.length, default=None)
        # What is known to be harmless is so although the line holds the words of something worse.
        return [longest] if longest and longest.entry.kind == "notice" else ranked


def _rank(hit: Hit) -> tuple[int, bool, int, int, str]:
    return hit.entry.weight, hit.entry.general, -hit.entry.conditions, -hit.length, hit.entry.id


def filled(text: str, names: dict[str, str]) -> str:
    """`text` with what was captured in place of {name}; what was not captured is left out, with the brackets or the
    colon before it. Chinese sentences have full-width ones, and no blank after a name.
    """
    for name in set(re.findall(r"\{(\w+)\}", text)) - names.keys():
        text = re.sub(rf"^\{{{name}\}}", say("something"), text)
        text = re.sub(rf" ?[(（][^(){{}}（）]*\{{{name}\}}[^(){{}}（）]*[)）]", "", text)
        text = re.sub(rf"[:：]? ?\(?\{{{name}\}}[^ ,;.:)，；。：、）一-鿿]*\)?", "", text)
    return re.sub(r"\{(\w+)\}", lambda match: names.get(match[1], match[0]), text)


def _names(entry: KnownFailure, text: str, match: re.Match[str] | None) -> dict[str, str]:
    """What `pattern` and `capture` name in the line; the first one counts."""
    matches = [match] if match else []
    if entry.capture:
        matches += entry.capture.finditer(text)
    names: dict[str, str] = {}
    for each in matches:
        for name, value in each.groupdict().items():
            if value:
                names.setdefault(name, value)
    return names


def _narrows(word: bytes) -> tuple[bool, int]:
    """The greater, the fewer lines of trouble hold the word."""
    return len(word) > 2 and word not in _TROUBLE, len(word)


def _other(word: bytes, words: list[bytes]) -> bytes:
    """The one of `words`, besides `word`, that the fewest lines hold; `word` itself if there is no other."""
    return max((each for each in words if each != word), key=_narrows, default=word)


def _stands_in(parts: tuple[bytes, ...], line: bytes) -> int:
    """Length of the anchor when its parts stand in `line` in their order, else 0."""
    start = 0
    for part in parts:
        start = line.find(part, start)
        if start < 0:
            return 0
        start += len(part)
    return sum(map(len, parts))
