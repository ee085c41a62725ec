"""Finds the known failures in lines, most of which contain none."""

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
_NEED_A_NOUN = "a|an|and|at|by|for|from|has|in|installed|needs|no|of|on|than|this|to|with"
_WORDS_ONLY = bytes(
    code if chr(code).isascii() and (chr(code).isalnum() or code == 10) else 32 for code in bytes(range(256)).lower()
)
"""For bytes.translate: letters to lower case, and characters other than letters, digits and line ends to blanks."""
_TROUBLE = frozenset(
    b"error errors exception traceback critical fatal fail failed failure abort aborted killed null".split()
) | {
    name.lower().encode()
    for name, each in vars(builtins).items()
    if isinstance(each, type) and issubclass(each, BaseException)
}
"""Words of lines that may matter even if no entry matches them."""
_COMMON = frozenset(
    b"access and are associated available became because but can code communication could create current different "
    b"environment feature features find following for found from function give greater have identify image images "
    b"information input instruction known language line list long lost machine major model must need not number only "
    b"open other others out output positive problem process real received reduce return same service should size state "
    b"support system text than that the their there third time train training type use used user using value values "
    b"what where which with world your".split()
)
"""Words of anchors that are common in any text: trying the anchors at each of them takes half of the time."""
_UNTELLING = _COMMON | _TROUBLE
_HITS_KEPT = 5
"""Entries kept for one line: those that require facts are decided after the whole log is read."""
_MANY = 8
"""Number of pieces of text from which on one pattern is faster than separate searches."""
_TELLING = 4
"""Fewest letters of a word within an anchor that is used instead of one at its ends."""
ASCEND = frozenset(b"ascend npu cann hccl".split())
_CLASSES = ("detail", "unknown")
"""Kinds of entries that know only the class of a failure."""


@dataclass(frozen=True)
class Hit:
    entry: KnownFailure
    length: int
    """Characters of the anchor; a longer one is more specific."""
    names: dict[str, str]
    """Captures of the pattern."""

    def confirmed_by(self, below: Sequence[str]) -> Hit | None:
        """The hit, with the text after the words that are required below its line; None if the words are missing."""
        words = self.entry.below
        index = next((index for index, each in enumerate(below) if words in each), None)
        if not words or index is None:
            return None if words else self
        rest = takewhile(lambda each: each.startswith(" " * len(words)), below[index + 1 :])
        message_lines = [below[index].partition(words)[2], *rest]
        return replace(self, names={**self.names, BELOW: " ".join(map(str.strip, message_lines))})


class Matcher:
    """Matches in two steps: a line's words and a piece of an anchor decide whether it is worth reading; then all
    anchors that share two words with it are tried.

    Specific words from within an anchor are preferred: those at its ends may be parts of longer names in the line.
    Otherwise the longest word is used that is not a word of trouble, because lines of trouble are many.
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
                # Lines that differ only in digits are equally worth reading.
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
        """By a word of anchors: the longest piece without digits of each anchor."""
        self._patterns: dict[bytes, re.Pattern[bytes]] = {}
        """By a word with many such pieces: a pattern of all of them, compiled when a line first contains the word."""
        self._numbered = frozenset(numbered)
        """Words of anchors that consist of the word and a number."""
        self._anchors = frozenset(self._by_word)
        self._words = self._rare.union(_TROUBLE, ASCEND)

    def worth_a_look(self, block: bytes, always: frozenset[bytes]) -> list[bool]:
        """For each line of `block`: whether it looks like an error, or contains a piece of an anchor.

        The result is equal for lines that differ only in decimal digits.

        Args:
            always: words whose lines are always worth reading; a subset of `ASCEND`.
        """
        are_missing = self._words.isdisjoint
        if b"\x1b" in block or b"[0m" in block:
            # A colour code would become the beginning of the word after it.
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
        """All entries that match a line, the best first: those that explain most, then the longest anchor."""
        written = text.encode()
        # bytes.lower changes only ASCII: the length stays the same.
        line = written.lower()
        words = frozenset(line.translate(_WORDS_ONLY).split())
        if self._anchors.isdisjoint(words):
            return []
        hits: dict[str, Hit] = {}
        for word in self._anchors.intersection(words):
            for other, parts, entry in self._by_word[word]:
                if other not in words or parts[0] not in line:
                    continue
                length = _stands_in(parts, line, written)
                if not length or (entry.id in hits and hits[entry.id].length >= length):
                    continue
                match = entry.pattern.search(text) if entry.pattern else None
                if entry.pattern and not match:
                    continue
                hits[entry.id] = Hit(entry, length, _names(entry, text, match))
        ranked = sorted(hits.values(), key=rank)
        longest = max(ranked, key=lambda hit: hit.length, default=None)
        # A line that is known as harmless may contain the words of a failure.
        if longest is None or longest.entry.kind != "notice":
            return ranked
        # Conditions are decided after the lines below, or the whole log, are read.
        depends = longest.entry.is_conditional or longest.entry.below
        return [longest, *(hit for hit in ranked if hit is not longest)] if depends else [longest]

    def confirmed_hits(self, text: str, below: list[str]) -> list[Hit]:
        """Hits of a line that is not an exception, as far as the lines `below` confirm them."""
        hits = [
            confirmed
            for hit in self.hits(text)
            if not hit.entry.frame
            and hit.entry.origin in ("", "own-code")
            and hit.entry.kind != "unknown"
            and (confirmed := hit.confirmed_by(below)) is not None
        ]
        # The lines below have confirmed that the line is harmless.
        return hits[:1] if hits and hits[0].entry.kind == "notice" and hits[0].entry.below else hits

    def known_length(self, text: str) -> int:
        """Length of the longest anchor in a line; 0 if no entry knows more than the class of its failure."""
        return max((hit.length for hit in self.hits(text) if hit.entry.kind not in _CLASSES), default=0)

    def known_together(self, line: str, rest: str) -> str | None:
        """A line joined with the next one, if an entry matches more of both than of the next one alone."""
        known = self.known_length(rest)
        joined = (line + rest, f"{line.rstrip()} {rest.strip(' │')}".lstrip(" │"))
        return next((whole for whole in joined if self.known_length(whole) > known), None)


def rank(hit: Hit) -> tuple[int, bool, int, int, str]:
    """Sort key: smaller for hits that explain their line better."""
    return hit.entry.weight, hit.entry.general, -hit.entry.conditions, -hit.length, hit.entry.id


def best(hits: list[Hit]) -> list[Hit]:
    """The first of `hits`, up to the first unconditional one at least."""
    certain = next((index for index, hit in enumerate(hits) if not hit.entry.is_conditional), len(hits))
    return hits[: max(_HITS_KEPT, certain + 1)]


def with_spare(hits: list[Hit], spare: Hit | None) -> list[Hit]:
    """The hits, followed by the spare one if all of them depend on conditions."""
    depend = all(hit.entry.is_conditional for hit in hits)
    return [*hits, spare] if depend and spare is not None else hits


def names_in(sentence: str) -> list[str]:
    """Placeholders (names in braces) of a sentence."""
    return _NAME.findall(sentence)


def filled(text: str, names: dict[str, str]) -> str:
    """Replace {name} in `text` by its capture; names without one are removed, with the brackets around them or the
    colon before them, and are "…" after an article or a preposition. Chinese sentences have full-width ones, and no
    blank after a name.
    """
    missing = set(names_in(text)) - names.keys()
    # Brackets with several names are removed as a whole if none is known.
    text = _BRACKETS.sub(lambda part: part[0] if set(names_in(part[0])) - missing else "", text)
    for name in sorted(missing):
        text = re.sub(rf"^\{{{name}\}}", say("something"), text)
        text = re.sub(rf"\b({_NEED_A_NOUN}) \{{{name}\}}", r"\1 …", text)
        text = re.sub(rf" ?[(（][^(){{}}（）]*\{{{name}\}}[^(){{}}（）]*[)）]", "", text)
        absent = rf"\{{{name}\}}[^ ,;.:)，；。：、）一-鿿]*"
        # In brackets with other names only the name and its sign are removed.
        text = re.sub(rf"(?<=[(（]){absent}[:,：，] ?", "", text)
        text = re.sub(rf"(?:[:：]|[,，](?= ?{absent}(?:[,;.:)，；。：）]|$)))? ?{absent}", "", text)
    return re.sub(r"\{(\w+)\}", lambda match: names.get(match[1], match[0]), text)


def _names(entry: KnownFailure, text: str, match: re.Match[str] | ApiChange | None) -> dict[str, str]:
    """Captures of `pattern` and `capture` in the line; the first value of a name counts."""
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
    """Sort key: greater for words that are in fewer lines of trouble."""
    return len(word) > 2 and word not in _TROUBLE, len(word)


def _is_rare(word: bytes) -> tuple[bool, int]:
    """Sort key: greater for words that are in fewer lines."""
    return len(word) > 2 and word not in _COMMON, len(word)


def _chunk(parts: tuple[bytes, ...]) -> bytes:
    """Longest piece without digits; it is in every line with the anchor `parts`."""
    return max((piece for part in parts for piece in _DIGITS.split(part)), key=len)


def _other(word: bytes, words: list[bytes]) -> bytes:
    """The rarest of the other `words`; `word` itself if it is the only one."""
    return max((each for each in words if each != word), key=_narrows, default=word)


def _stands_in(parts: tuple[bytes, ...], line: bytes, written: bytes) -> int:
    """Length of the anchor if its parts are in `line` in their order, else 0.

    Args:
        written: the line in its original case.
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
    """Whether `at` is inside a word: "port" in "reporting" is not a word, "Error" in "OSError" and behind an escaped
    line end are words."""
    is_inside = written[at - 1 : at + 1].isalpha() and written[at - 1 : at + 1].islower()
    return is_inside and written[at - 2 : at] not in (b"\\n", b"\\t")
