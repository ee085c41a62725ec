"""Shows rows as they are trained on: as read, as rendered, and as tokens with labels and cuts."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from ascendtune.data.conversation import BadRow, Conversation, PreferencePair, RawRow, Text, UnpairedPreference
from ascendtune.data.load import converted_rows
from ascendtune.data.shards import TOO_LONG
from ascendtune.data.spans import TemplateRefusedRow
from ascendtune.data.spec import DataSection, DatasetSpec, Task
from ascendtune.data.template import ChatTemplate
from ascendtune.data.token_ranges import trained_tokens
from ascendtune.data.tokenize_texts import piece_ends
from ascendtune.data.tokenizer import Tokenizer

_MOST_CHARACTERS = 400_000


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens that are equally trained on or not, and cut or not."""

    text: str
    tokens: int
    is_trained: bool
    is_cut: bool
    """Whether the tokens are beyond data.max_length."""


@dataclass(frozen=True)
class TokenSequence:
    """One conversation or text of a row as tokens."""

    name: str
    """`chosen` or `rejected` for a pair, `answer` for an answer with a label, else empty."""
    segments: list[Segment]
    token_ids: list[int]
    token_texts: list[str]
    trained: list[bool]
    """Per token: whether the loss covers it, before the cut."""
    is_beginning: bool
    """Whether the text is so long that only its beginning was tokenised."""
    is_split: bool = False
    """Whether each segment is a row of tokens of its own: stage pretrain splits long texts."""

    @property
    def kept(self) -> int:
        """Tokens before the cut."""
        return sum(each.tokens for each in self.segments if not each.is_cut)


@dataclass(frozen=True)
class InspectedRow:
    number: int
    """Counted from 1 over all data sets, as read."""
    place: str
    values: dict[str, Any]
    """Values as read."""
    format: str
    problem: str | None
    """The reason why the row cannot be trained on; None if it can."""
    sequences: list[TokenSequence]

    @property
    def title(self) -> str:
        return f"row {self.number}, {self.place}, format {self.format}"


@dataclass(frozen=True)
class Inspection:
    """Inspects rows as training would read them."""

    section: DataSection
    task: Task
    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None for stage pretrain."""
    resolve: Callable[[DatasetSpec], Path]

    def rows(self, first: int, count: int) -> list[InspectedRow]:
        """`count` rows from number `first` on, counted from 1.

        Raises:
            DataError: unreadable files, or columns that do not fit.
        """
        begin = min(first - 1, sys.maxsize - count)
        return [self._inspected(*each) for each in islice(self._numbered(), begin, begin + count)]

    def first_trained_on(self, among: int) -> InspectedRow | None:
        """The first row that is trained on; None if the first `among` rows contain none.

        Raises:
            DataError: as for `rows`.
        """
        rows = (self._inspected(*each) for each in islice(self._numbered(), among))
        return next((row for row in rows if not row.problem), None)

    def number_of_rows(self) -> int:
        """Number of rows as read, including those that cannot be trained on."""
        return sum(1 for _ in self._numbered())

    def count_duplicates(self) -> tuple[int, int]:
        """(rows read, rows that an earlier row equals)."""
        seen, rows = set[bytes](), 0
        for number, row, _, _ in self._numbered():
            rows = number
            text = json.dumps(row.values, ensure_ascii=False, sort_keys=True, default=str)
            seen.add(hashlib.blake2b(text.encode(errors="replace"), digest_size=16).digest())
        return rows, rows - len(seen)

    def _numbered(self) -> Iterator[tuple[int, RawRow, str, Any]]:
        number = 0
        for spec in self.section.train:
            name, rows = converted_rows(spec, self.resolve(spec), self.task)
            for row, converted in rows:
                number += 1
                yield number, row, name, converted

    def _inspected(self, number: int, row: RawRow, name: str, converted: Any) -> InspectedRow:
        problem, sequences = None, list[TokenSequence]()
        try:
            if isinstance(converted, BadRow):
                problem = f"{converted.reason} ({converted.detail})" if converted.detail else converted.reason
            else:
                sequences = self._sequences(converted)
        except TemplateRefusedRow as refusal:
            problem = f"the chat template refuses it: {refusal.reason}"
        most, truncates = self.section.max_length, self.section.on_long_row == "truncate"
        for each in sequences:
            if problem is None and len(each.token_ids) > most and not truncates:
                problem = f"{TOO_LONG}, with data.on_long_row: {self.section.on_long_row}"
            # No position predicts the first token.
            if problem is None and self.task != "text" and not any(each.trained[1:most]):
                problem = "no answer left within max_length" if any(each.trained) else "no token to train on"
        return InspectedRow(number, row.place, dict(row.values), name, problem, sequences)

    def _sequences(self, converted: Conversation | Text | PreferencePair | UnpairedPreference) -> list[TokenSequence]:
        match converted:
            case Text():
                return [self._of_text(converted.text)]
            case PreferencePair():
                return [
                    self._of_conversation(converted.chosen, "chosen"),
                    self._of_conversation(converted.rejected, "rejected"),
                ]
            case UnpairedPreference():
                name = "good answer" if converted.desirable else "bad answer"
                return [self._of_conversation(converted.conversation, name)]
            case Conversation():
                return [self._of_conversation(converted, "")]

    def _of_text(self, text: str) -> TokenSequence:
        """The whole text is trained on, followed by EOS; every max_length tokens a row of tokens begins."""
        shown = text[:_MOST_CHARACTERS]
        encoding = self.tokenizer.encode_batch([shown])[0]
        ids, offsets = list(encoding.ids), list(encoding.offsets)
        eos = [self.tokenizer.eos_id] if self.tokenizer.eos_id is not None and shown == text else []
        prefix = self.tokenizer.text_prefix
        added = [self.tokenizer.text_of(number) or "" for number in (*prefix, *eos)]
        ids = [*prefix, *ids, *eos]
        texts = [*added[: len(prefix)], *(shown[begin:end] for begin, end in offsets), *added[len(prefix) :]]
        places = [*((-1, at) for at in range(len(prefix))), *offsets, *((-2, at) for at in range(len(eos)))]
        splits = self.section.on_long_row == "truncate"
        ends = piece_ends(len(ids), self.section.max_length) if splits else [len(ids)]
        segments = [
            Segment(_text_of(texts, places, begin, end), end - begin, is_trained=True, is_cut=False)
            for begin, end in pairwise([0, *ends])
        ]
        if ends[-1] < len(ids):
            rest = _text_of(texts, places, ends[-1], len(ids))
            segments.append(Segment(rest, len(ids) - ends[-1], is_trained=True, is_cut=True))
        trained = [True] * len(ids)
        return TokenSequence("", segments, ids, texts, trained, shown != text, is_split=len(ends) > 1)

    def _of_conversation(self, conversation: Conversation, name: str) -> TokenSequence:
        assert self.template is not None
        rendered = self.template.render(conversation)
        text = rendered.text[:_MOST_CHARACTERS]
        encoding = self.tokenizer.encode_batch([text])[0]
        spans = [(begin, min(end, len(text))) for begin, end in rendered.spans if begin < len(text)]
        trained = [False] * len(encoding.ids)
        for begin, end in trained_tokens(encoding, spans, len(text)):
            trained[begin:end] = [True] * (end - begin)
        texts = [text[begin:end] for begin, end in encoding.offsets]
        return self._sequence(
            name, list(encoding.ids), texts, encoding.offsets, trained, is_beginning=len(text) < len(rendered.text)
        )

    def _sequence(
        self,
        name: str,
        ids: list[int],
        texts: list[str],
        places: list[tuple[int, int]],
        trained: list[bool],
        *,
        is_beginning: bool,
    ) -> TokenSequence:
        """Args:
        places: begin and end of each token in characters; tokens that are the bytes of one character share them.
        """
        segments: list[Segment] = []
        # Without truncation the whole row is dropped.
        most = self.section.max_length if self.section.on_long_row == "truncate" else sys.maxsize
        begin = 0
        for at in range(1, len(ids) + 1):
            if at in (len(ids), most) or (at < most and trained[at] != trained[begin]):
                segments.append(Segment(_text_of(texts, places, begin, at), at - begin, trained[begin], begin >= most))
                begin = at
        return TokenSequence(name, segments, ids, texts, trained, is_beginning)


def _text_of(texts: list[str], places: list[tuple[int, int]], begin: int, end: int) -> str:
    """The text of tokens `begin` to `end`; tokens that are the bytes of one character share its place."""
    return "".join(texts[at] for at in range(begin, end) if at == 0 or places[at] != places[at - 1])
