"""Finds the known failures that a line names, among millions of lines that name none."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from ascendtune.check.explain.knowledge.entries import BELOW, KnownFailure
from ascendtune.check.explain.language import say
from ascendtune.check.explain.log import level
from ascendtune.check.explain.log.frame import without_escapes
from ascendtune.check.explain.log.line import without_colours
from ascendtune.check.explain.package.api_change import ApiChange

_WORD = re.compile(rb"[a-z0-9]+")
_DIGITS = re.compile(rb"\d+")
_NAME = re.compile(r"\{(\w+)\}")
_BRACKETS = re.compile(r" ?[(（][^()（）]*\{\w+\}[^()（）]*[)）]")
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
_COMMON = frozenset(
    b"access and are associated available became because but can code communication could create current different "
    b"environment feature features find following for found from function give greater have identify image images "
    b"information input instruction known language line list long lost machine major model must need not number only "
    b"open other others out output positive problem process real received reduce return same service should size state "
    b"support system text than that the their there third time train training type use used user using value values "
    b"what where which with world your".split()
)
"""Words of anchors that any text holds: looking for the anchors at each of them takes half of the time."""
_UNTELLING = _COMMON | _TROUBLE
_HITS_KEPT = 5
"""Entries of one line: those that require facts are decided when the whole log is read."""
_MANY = 8
"""Pieces of text that one pattern finds faster than as many searches."""
_TELLING = 4
"""Letters of a word within an anchor that is looked for in place of one at its ends."""
ASCEND = frozenset(b"ascend npu cann hccl".split())
_CLASSES = ("detail", "unknown")
"""Kinds of entries that know no more of a line than the class of its failure."""


@dataclass(frozen=True)
class Hit:
    entry: KnownFailure
    length: int
    """Characters of the anchor; the longer one is the more telling one."""
    names: dict[str, str]
    """What the pattern captured."""

    def confirmed_by(self, below: Sequence[str]) -> Hit | None:
        """The hit, with what follows the words that must stand below its line; None where they do not stand there."""
        words = self.entry.below
        index = next((index for index, each in enumerate(below) if words in each), None)
        if not words or index is None:
            return None if words else self
        rest = takewhile(lambda each: each.startswith(" " * len(words)), below[index + 1 :])
        said = [below[index].partition(words)[2], *rest]
        return replace(self, names={**self.names, BELOW: " ".join(map(str.strip, said))})


class Matcher:
    """Two steps: a line's words and a piece of an anchor tell whether it is worth a look, then all anchors are tried
    that have two of its words.

    Words from within an anchor are taken where there are telling ones: those at its ends may be parts of longer names
    in the line. Else it is the longest that is not a word of trouble, for of lines of trouble there are many.
    """

    def __init__(self, entries: Iterable[KnownFailure]) -> None:
        self._by_word: dict[bytes, list[tuple[bytes, tuple[bytes, ...], KnownFailure]]] = {}
        chunks: dict[bytes, dict[bytes, None]] = {}
        numbered = set[bytes]()
        for entry in entries:
            for anchor in entry.anchors:
                parts = tuple(part.encode() for part in anchor)
                words = [word for part in parts for word in _WORD.findall(part)]
                whole = [word for part in parts for word in _WORD.findall(part)[1:-1]]
                inner = [word for word in whole if len(word) >= _TELLING and word not in _UNTELLING]
                tried = max(inner or words, key=_narrows)
                # Lines that differ in digits only are worth the same.
                rare = max(filter(bytes.isalpha, inner or words), key=_narrows, default=tried)
                rare = rare if rare not in _COMMON else max(words, key=_is_rare)
                chunk = _chunk(parts)
                if chunk.strip() == rare and any(map(_DIGITS.search, parts)):
                    numbered.add(rare)
                else:
                    chunks.setdefault(rare, {}).setdefault(chunk)
                self._by_word.setdefault(tried, []).append((_other(tried, whole), parts, entry))
        self._rare = frozenset(chunks).union(numbered)
        self._chunks = {word: tuple(chunks.get(word, ())) for word in self._rare}
        """By a word of anchors: of each anchor the longest piece without digits."""
        self._patterns: dict[bytes, re.Pattern[bytes]] = {}
        """Of words with many such pieces, one that matches any of them; made when a line first holds the word."""
        self._numbered = frozenset(numbered)
        """Words whose anchors have a number besides, and nothing else."""
        self._anchors = frozenset(self._by_word)
        self._words = self._rare.union(_TROUBLE, ASCEND)

    def worth_a_look(self, block: bytes, always: frozenset[bytes]) -> list[bool]:
        """For each line of `block`: does it look like an error, or hold a piece of an anchor?

        Lines that differ in decimal digits only are worth the same.

        Args:
            always: any line with one of these words is worth a look; of `ASCEND`.
        """
        are_missing = self._words.isdisjoint
        if b"\x1b" in block or b"[0m" in block:
            # A code of colour would be the beginning of the word behind it.
            block = without_colours(block)
        lines = block.split(b"\n")
        words_of = map(bytes.split, block.translate(_WORDS_ONLY).split(b"\n"))
        return [
            not are_missing(words) and self._is_worth(words, line, always)
            for words, line in zip(words_of, lines, strict=True)
        ]

    def _is_worth(self, words: list[bytes], line: bytes, always: frozenset[bytes]) -> bool:
        if not always.isdisjoint(words):
            return True
        lower = line.lower()
        for word in self._rare.intersection(words):
            if self._holds_chunk(word, lower) or (word in self._numbered and _DIGITS.search(lower)):
                return True
        return (b"[E" in line or b"rror" in line or not _TROUBLE.isdisjoint(words)) and level.has_sign(line)

    def _holds_chunk(self, word: bytes, lower: bytes) -> bool:
        chunks = self._chunks[word]
        if len(chunks) < _MANY:
            return any(map(lower.__contains__, chunks))
        if word not in self._patterns:
            self._patterns[word] = re.compile(b"|".join(map(re.escape, chunks)))
        return self._patterns[word].search(lower) is not None

    def hits(self, text: str) -> list[Hit]:
        """Everything known that a line speaks of, the best first: what explains most, then the longest anchor."""
        written = text.encode()
        # Of bytes, which puts only ASCII in lower case: both are equally long.
        line = written.lower()
        words = frozenset(line.translate(_WORDS_ONLY).split())
        if self._anchors.isdisjoint(words):
            return []
        found: dict[str, Hit] = {}
        for word in self._anchors.intersection(words):
            for other, parts, entry in self._by_word[word]:
                if other not in words or parts[0] not in line:
                    continue
                length = _stands_in(parts, line, written)
                if not length or (entry.id in found and found[entry.id].length >= length):
                    continue
                match = entry.pattern.search(text) if entry.pattern else None
                if entry.pattern and not match:
                    continue
                found[entry.id] = Hit(entry, length, _names(entry, text, match))
        ranked = sorted(found.values(), key=rank)
        longest = max(ranked, key=lambda hit: hit.length, default=None)
        # What is known to be harmless is so although the line holds the words of something worse.
        if longest is None or longest.entry.kind != "notice":
            return ranked
        # Whether one with conditions holds is known when the lines below, or the whole log, are read.
        depends = longest.entry.is_conditional or longest.entry.below
        return [longest, *(hit for hit in ranked if hit is not longest)] if depends else [longest]

    def confirmed_hits(self, text: str, below: list[str]) -> list[Hit]:
        """Of a line that is no exception: what is known about it, and the lines `below` do not contradict."""
        hits = [
            confirmed
            for hit in self.hits(text)
            if not hit.entry.frame
            and hit.entry.origin in ("", "own-code")
            and hit.entry.kind != "unknown"
            and (confirmed := hit.confirmed_by(below)) is not None
        ]
        # What stands below has confirmed that the line is harmless.
        return hits[:1] if hits and hits[0].entry.kind == "notice" and hits[0].entry.below else hits

    def known_length(self, text: str) -> int:
        """Length of the longest anchor in a line; 0 where no entry knows more than the class of its failure."""
        return max((hit.length for hit in self.hits(text) if hit.entry.kind not in _CLASSES), default=0)

    def known_together(self, line: str, rest: str) -> str | None:
        """A line with what follows it on the next one, if an entry knows more of both than of that rest alone."""
        known = self.known_length(rest)
        joined = (line + rest, f"{line.rstrip()} {rest.strip(' │')}".lstrip(" │"))
        return next((whole for whole in joined if self.known_length(whole) > known), None)


def rank(hit: Hit) -> tuple[int, bool, int, int, str]:
    """The smaller, the better it explains its line."""
    return hit.entry.weight, hit.entry.general, -hit.entry.conditions, -hit.length, hit.entry.id


def best(hits: list[Hit]) -> list[Hit]:
    """The first of `hits`; at least one that holds whatever else the logs say, if there is one."""
    certain = next((index for index, hit in enumerate(hits) if not hit.entry.is_conditional), len(hits))
    return hits[: max(_HITS_KEPT, certain + 1)]


def with_spare(hits: list[Hit], spare: Hit | None) -> list[Hit]:
    """The hits; the line's own words besides, where each of the entries depends on what else the logs say."""
    depend = all(hit.entry.is_conditional for hit in hits)
    return [*hits, spare] if depend and spare is not None else hits


def names_in(sentence: str) -> list[str]:
    """The names in braces, in whose place stands what was captured."""
    return _NAME.findall(sentence)


def filled(text: str, names: dict[str, str]) -> str:
    """`text` with what was captured in place of {name}; what was not captured is left out, with the brackets or the
    colon before it. Chinese sentences have full-width ones, and no blank after a name.
    """
    missing = set(names_in(text)) - names.keys()
    # Brackets with several names go as a whole where none is known.
    text = _BRACKETS.sub(lambda part: part[0] if set(names_in(part[0])) - missing else "", text)
    for name in sorted(missing):
        text = re.sub(rf"^\{{{name}\}}", say("something"), text)
        text = re.sub(rf" ?[(（][^(){{}}（）]*\{{{name}\}}[^(){{}}（）]*[)）]", "", text)
        text = re.sub(rf"[:：]? ?\(?\{{{name}\}}[^ ,;.:)，；。：、）一-鿿]*\)?", "", text)
    return re.sub(r"\{(\w+)\}", lambda match: names.get(match[1], match[0]), text)


def _names(entry: KnownFailure, text: str, match: re.Match[str] | ApiChange | None) -> dict[str, str]:
    """What `pattern` and `capture` name in the line; the first one counts."""
    matches: list[re.Match[str] | ApiChange] = [match] if match else []
    if entry.capture:
        matches += entry.capture.finditer(text)
    names: dict[str, str] = {}
    for each in matches:
        for name, value in each.groupdict().items():
            if value:
                names.setdefault(name, without_escapes(value))
    return names


def _narrows(word: bytes) -> tuple[bool, int]:
    """The greater, the fewer lines of trouble hold the word."""
    return len(word) > 2 and word not in _TROUBLE, len(word)


def _is_rare(word: bytes) -> tuple[bool, int]:
    """The greater, the fewer lines hold the word."""
    return len(word) > 2 and word not in _COMMON, len(word)


def _chunk(parts: tuple[bytes, ...]) -> bytes:
    """The longest piece without digits: every line with the anchor `parts` holds it."""
    return max((piece for part in parts for piece in _DIGITS.split(part)), key=len)


def _other(word: bytes, words: list[bytes]) -> bytes:
    """The one of `words`, besides `word`, that the fewest lines hold; `word` itself if there is no other."""
    return max((each for each in words if each != word), key=_narrows, default=word)


def _stands_in(parts: tuple[bytes, ...], line: bytes, written: bytes) -> int:
    """Length of the anchor when its parts stand in `line` in their order, else 0.

    Args:
        written: the line before it was put in lower case.
    """
    start = 0
    for part in parts:
        start = line.find(part, start)
        while start > 0 and _is_inside_a_word(start, written):
            start = line.find(part, start + 1)
        if start < 0:
            return 0
        start += len(part)
    return sum(map(len, parts))


def _is_inside_a_word(at: int, written: bytes) -> bool:
    """Whether a word goes on at `at`: the port of "reporting" is none, the Error of "OSError" is one."""
    return written[at - 1 : at + 1].isalpha() and written[at - 1 : at + 1].islower()
