"""Tokenises very long texts, for which one call would take too much memory: only the beginning, or part by part.

A tokenizer takes some three hundred bytes and a microsecond per character, so a text of 100 MB costs 30 GB. A token
depends on the text around it, but not on distant text: pre-tokenizers look a character ahead, and a merge of BPE
depends on the merges to its right only as far as their ranks decrease. So tokens that end well before a cut are those
of the whole text. This is verified: a later cut, or a start in the middle, must result in the same tokens; otherwise
more text is used.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from ascendtune.data.store import Int32
from ascendtune.data.tokenizer import Tokenizer

_MARGIN = 4096
"""Tokens of this many characters before a cut are not used."""
_OVERLAP = 4 * _MARGIN
"""Characters at the end of a part of which the next part repeats some or all."""
_CHARACTERS_PER_TOKEN = 8
_CHARACTERS_PER_PART = 500_000
_LONGEST_PART = 8_000_000
_PLACES_TRIED = 8
_FEWEST_ALIKE = 8


class IndivisibleText(Exception):
    """No place was found at which tokenisation can start anew: the text is one word of millions of characters."""


def characters_for(tokens: int) -> int:
    """Texts up to this length are tokenised completely if `tokens` can be kept, so that all their tokens are
    counted."""
    return max(65_536, 2 * _CHARACTERS_PER_TOKEN * tokens)


def first_characters(tokens: int) -> int:
    """Number of characters of a longer text that `first_tokens` tokenises first; usually they suffice."""
    return _CHARACTERS_PER_TOKEN * tokens + 2 * _MARGIN


def first_tokens(backend: Backend, text: str, tokens: int) -> tuple[Encoding, int]:
    """Tokenise the beginning of `text`: at least its first `tokens` tokens are those of the whole text.

    Returns:
        The encoding, and the number of characters that it covers: all of them if the text has fewer tokens.
    """
    size = first_characters(tokens)
    while size < len(text):
        encoding = backend.encode(text[:size], add_special_tokens=False)
        if _reaches(encoding, tokens, size - _MARGIN) and not _is_mostly_combining(text[size - _MARGIN : size]):
            further = backend.encode(text[: size + 2 * _MARGIN], add_special_tokens=False)
            if further.ids[: tokens + 1] == encoding.ids[: tokens + 1]:
                return encoding, size
        size *= 2
    return backend.encode(text, add_special_tokens=False), len(text)


def _reaches(encoding: Encoding, tokens: int, characters: int) -> bool:
    """Whether more than `tokens` tokens end before this number of characters."""
    if len(encoding) <= tokens:
        return False
    place: tuple[int, int] | None = encoding.token_to_chars(tokens)
    return place is not None and place[1] <= characters


def _is_mostly_combining(text: str) -> bool:
    """Whether most characters combine with others: normalisation sorts them behind their letter, however many."""
    return not text.isascii() and sum(map(bool, map(unicodedata.combining, text))) > len(text) // 2


class ChunkedTokenizer:
    """Tokenises texts of any length in bounded memory: the same tokens as tokenising each at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> Int32:
        """(tokens,) int32.

        Raises:
            IndivisibleText: the text cannot be divided.
        """
        return np.concatenate([np.empty(0, np.int32), *self._parts(text)])

    def _parts(self, text: str) -> Iterator[Int32]:
        begin, size, way = 0, _CHARACTERS_PER_PART, _AS_IT_IS
        while True:
            end = min(begin + size, len(text))
            part = self._part(text, begin, end, way)
            if end == len(text):
                yield np.array(part.ids, np.int32)
                return
            start = self._next_start(text, part, end)
            if start is not None:
                token, begin, way = start
                yield np.array(part.ids[:token], np.int32)
                size = _CHARACTERS_PER_PART
            elif size < _LONGEST_PART:
                size *= 2
            else:
                raise IndivisibleText

    def _next_start(self, text: str, part: _Part, end: int) -> tuple[int, int, str] | None:
        """(token, character, way) at which the next part can begin, so that its tokens continue those of `part`."""
        sure = next((n for n in range(len(part.ids), 0, -1) if part.offsets[n - 1][1] <= end - _MARGIN), 0)
        if _is_mostly_combining(text[end - _MARGIN : end]):
            return None
        for token in part.starts(end - _OVERLAP, end - 2 * _MARGIN)[:_PLACES_TRIED]:
            expected, begin = part.ids[token:sure], part.offsets[token][0]
            if len(expected) < _FEWEST_ALIKE:
                continue
            for way in _WAYS:
                # Beyond the end of this part: the text after it must not matter either.
                probe = self._part(text, begin, min(end + _OVERLAP, len(text)), way)
                # Equal ids at other places do not count: a word of one repeated letter has many equal tokens.
                places = probe.offsets[1 : len(expected)] == part.offsets[token + 1 : sure]
                if probe.ids[: len(expected)] == expected and places:
                    return token, begin, way
        return None

    def _part(self, text: str, begin: int, end: int, way: str) -> _Part:
        backend: Backend = self._tokenizer.backend
        if way == _IN_PLACE_OF_A_SPACE:
            if text[begin] != " ":
                return _Part([], [], [], 0)
            # The prefix that the tokenizer adds to a text replaces this space.
            begin += 1
        elif way == _WITHOUT_PREFIX:
            if self._continuing is None or any(added in text[begin:end] for added in self._tokenizer.added_tokens):
                return _Part([], [], [], 0)
            backend = self._continuing
        encoding = backend.encode(text[begin:end], add_special_tokens=False)
        shift = 1 if way == _IN_PLACE_OF_A_SPACE else 0
        return _Part(encoding.ids, encoding.offsets, encoding.word_ids, begin, first_is_wider=shift)

    @cached_property
    def _continuing(self) -> Backend | None:
        """The tokenizer without its prefix for texts; None if it has none."""
        content = json.loads(self._tokenizer.backend.to_str())
        changed = json.loads(json.dumps(content), object_hook=_without_prefix)
        return None if changed == content else Backend.from_str(json.dumps(changed))


# Ways to start tokenisation in the middle of a text.
_AS_IT_IS, _IN_PLACE_OF_A_SPACE, _WITHOUT_PREFIX = _WAYS = ("as it is", "in place of a space", "without prefix")


def _without_prefix(values: dict[str, Any]) -> dict[str, Any]:
    if values.get("type") == "Metaspace":
        return {**values, "prepend_scheme": "never"}
    if values.get("type") == "ByteLevel":
        return {**values, "add_prefix_space": False}
    if values.get("type") == "Prepend":
        return {"type": "Sequence", "normalizers": []}
    return values


class _Part:
    """A tokenised part of a text; places are those of the whole text."""

    def __init__(
        self,
        ids: list[int],
        offsets: list[tuple[int, int]],
        words: list[int | None],
        begin: int,
        *,
        first_is_wider: int = 0,
    ) -> None:
        self.ids = ids
        self.offsets = [(first + begin, last + begin) for first, last in offsets]
        self._words = words
        if first_is_wider and self.offsets:
            first, last = self.offsets[0]
            self.offsets[0] = (first - first_is_wider, last)

    def starts(self, first: int, last: int) -> list[int]:
        """Tokens that begin between two places and share no character with the previous token; starts of words
        first."""
        found = [
            token
            for token in range(1, len(self.ids))
            if first <= self.offsets[token][0] <= last and self.offsets[token - 1][1] <= self.offsets[token][0]
        ]
        return sorted(found, key=lambda token: self._words[token] == self._words[token - 1])
