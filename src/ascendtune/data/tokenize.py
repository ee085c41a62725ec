"""Converts conversations to shards of tokens with labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from tokenizers import Encoding

from ascendtune.core.errors import DataError
from ascendtune.data.conversation import Conversation, UnpairedPreference
from ascendtune.data.long_text import characters_for, first_characters, first_tokens
from ascendtune.data.shards import (
    MOST_SHARDS,
    NO_ANSWER_LEFT,
    NO_ANSWER_SPAN,
    NOTHING_TO_LEARN,
    REFUSED,
    TOO_LONG,
    Progress,
    TokenizeResult,
    processes_for,
    ranges_of,
    write_shards,
)
from ascendtune.data.skeleton import Shape, SkeletonRenderer
from ascendtune.data.spans import NeededSpans, Rendered, TemplateRefusedRow
from ascendtune.data.spec import ROWS_OF_A_GROUP, Task
from ascendtune.data.store import IGNORED, Float32, ShardWriter, count_labels
from ascendtune.data.template import ChatTemplate, TemplateTooCostly
from ascendtune.data.token_ranges import begins_within_token, trained_tokens


@dataclass(frozen=True)
class Groups:
    """Conversations to tokenise, `size` of them per row of the data set."""

    conversations: Sequence[Conversation]
    size: int = 1
    values: Float32 | None = None
    """(groups,) float32, as `TokenDataset.values`; None if groups are one row."""
    has_mismatched_answers: bool = False
    """The second conversation of every group has another row's answer, so its length never drops the row."""


def groups_of(rows: Sequence[Any], task: Task) -> Groups:
    """The conversations of `rows`, which must be of the kind for `task`.

    A pair is its chosen, then its rejected answer. A single answer is followed by a mismatched one, the same prompt
    with the answer of the previous row (for the first row, of the last): KTO (arXiv 2402.01306) estimates the KL
    divergence from the reference with it. TRL and LLaMA-Factory use the same one.

    Raises:
        DataError: for a single answer, there is no other row with a mismatched answer.
    """
    size = ROWS_OF_A_GROUP[task]
    if task == "pairs":
        margins = np.fromiter((pair.margin for pair in rows), np.float32, len(rows))
        return Groups(_Members(rows, lambda pair, _: (pair.chosen, pair.rejected)), size, margins)
    if task == "singles":
        if len(rows) < 2:
            raise DataError(
                "loss kto compares every answer with the answer of another row, and there is only one row",
                code="too-few-rows",
                remedy="use two or more rows, in the evaluation data too",
            )
        desirable = np.fromiter((row.desirable for row in rows), np.float32, len(rows))
        return Groups(_Members(rows, _with_mismatched), size, desirable, has_mismatched_answers=True)
    return Groups(rows, size)


class _Members(Sequence[Conversation]):
    """The conversations of groups of two, created from their rows on access."""

    def __init__(self, rows: Sequence[Any], make: Callable[[Any, Any], tuple[Conversation, Conversation]]) -> None:
        """
        Args:
            make: returns the conversations of a row; called with it and the previous row (for the first row, the last).
        """
        self._rows, self._make = rows, make

    def __len__(self) -> int:
        return 2 * len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Conversation: ...
    @overload
    def __getitem__(self, index: slice) -> list[Conversation]: ...
    def __getitem__(self, index: int | slice) -> Conversation | list[Conversation]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"conversation {index} of {len(self)}")
        row, member = divmod(index, 2)
        return self._make(self._rows[row], self._rows[(row - 1) % len(self._rows)])[member]


def _with_mismatched(row: UnpairedPreference, other: UnpairedPreference) -> tuple[Conversation, Conversation]:
    own = row.conversation
    messages = [*own.messages[:-1], other.conversation.messages[-1]]
    return own, Conversation(messages, own.tools, own.options)


_ROWS_PER_BATCH = 512
_CHARACTERS_PER_BATCH = 4_000_000
_SMALLEST_SHARD = 4096
# A fork costs as much as thousands of rows.
_ROWS_PER_EXTRA_PROCESS = 4000
_CHECKED_OF_EACH_SHAPE = 64
_CHECKED_AFTERWARDS = 1000

Ranges = list[tuple[int, int]]


def tokenize(
    groups: Groups,
    template: ChatTemplate,
    directory: Path,
    *,
    max_length: int,
    on_long_row: Literal["truncate", "drop", "fail"],
    sizes: Sequence[int] | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> TokenizeResult:
    """Write `groups` as a `TokenDataset` into `directory`, which must be empty.

    Truncation cuts the end of a conversation, with its EOS. A group is written completely or not at all. Dropped groups
    are listed in the result; the caller, which knows the places of rows, applies `fail`.

    Args:
        sizes: number of rows of each data set, in their order; default: all are of one.

    Raises:
        MachineError: the disk is full or read-only, or a process was killed.
    """
    job = _Job(groups, template, max_length, truncate=on_long_row == "truncate")
    job.use_fast_path()
    count = len(groups.conversations)
    # A shard contains whole groups.
    size = max(_SMALLEST_SHARD, -(-count // MOST_SHARDS)) * groups.size
    of_sets = [(first * groups.size, end * groups.size) for first, end in ranges_of(sizes or [count // groups.size])]
    shards = [[range(at, min(at + size, end)) for at in range(first, end, size)] for first, end in of_sets]
    run = partial(
        write_shards, directory, shards, job.write,
        processes=processes_for(processes, count // _ROWS_PER_EXTRA_PROCESS), group_size=groups.size, progress=progress,
    )  # fmt: skip
    outcome = run()
    if outcome.disagrees:
        job.fills_skeletons = False
        outcome = run()
    return outcome


@dataclass
class _Job:
    groups: Groups
    template: ChatTemplate
    max_length: int
    truncate: bool
    fills_skeletons: bool = False
    """Whether conversations that have a shape are rendered by the fast path; the others are rendered by Jinja."""

    def __post_init__(self) -> None:
        self._renderer = SkeletonRenderer(self.template)
        self._enough = characters_for(self.max_length)
        self._needed = NeededSpans(self._enough, first_characters(self.max_length))

    def use_fast_path(self) -> None:
        """Use the fast path if both ways of rendering agree on the first conversations of each shape."""
        if not self._renderer.usable:
            return
        seen: Counter[Shape] = Counter()
        for number, conversation in enumerate(self.groups.conversations):
            shape = self._renderer.shape_of(conversation)
            if shape is None:
                continue
            seen[shape] = count = seen[shape] + 1
            try:
                if count <= _CHECKED_OF_EACH_SHAPE and not self._agree(shape, conversation):
                    return
            except TemplateTooCostly as error:
                error.row = number // self.groups.size
                raise
        self.fills_skeletons = True

    def _agree(self, shape: Shape, conversation: Conversation) -> bool:
        fast = self._renderer.render_as(shape, conversation)
        try:
            return fast is None or fast == self.template.render(conversation)
        except TemplateRefusedRow:
            return False

    def write(self, conversations: range, writer: ShardWriter) -> TokenizeResult:
        total = TokenizeResult()
        for batch in self._batches(conversations):
            self._write_batch(batch, writer, total)
            if total.disagrees:
                break
        return total

    def _batches(self, conversations: range) -> Iterator[range]:
        """Ranges of whole groups whose encodings, 100 bytes per token, fit into memory."""
        begin, characters = conversations.start, 0
        for number in conversations[:: self.groups.size]:
            if number - begin >= _ROWS_PER_BATCH or characters >= _CHARACTERS_PER_BATCH:
                yield range(begin, number)
                begin, characters = number, 0
            for each in self.groups.conversations[number : number + self.groups.size]:
                characters += min(self._enough, sum(len(message["content"]) for message in each.messages))
        yield range(begin, conversations.stop)

    def _write_batch(self, conversations: range, writer: ShardWriter, total: TokenizeResult) -> None:
        groups = list(self._rendered(conversations, total))
        texts = [each.text for _, group in groups for each in group if len(each.text) <= self._enough]
        encodings = iter(self.template.tokenizer.encode_batch(texts))
        tokens: list[int] = []
        trained: Ranges = []
        offsets, written = [0], list[int]()
        for number, group in groups:
            encoded = [
                _Encoded.whole(each, next(encodings)) if len(each.text) <= self._enough else self._beginning(number, at)
                for at, each in enumerate(group)
            ]
            ranges_of_all = self._trained_parts(number, encoded, total)
            if not ranges_of_all:
                continue
            written.append(number)
            total.rows_joined_to_prompt += any(begins_within_token(each.encoding, each.spans) for each in encoded)
            total.rows_left_out_text += any(each.leaves_out_text for each in group)
            for each, ranges in zip(encoded, ranges_of_all, strict=True):
                begin = len(tokens)
                tokens += each.encoding.ids[: self.max_length]
                trained += [(begin + first, begin + last) for first, last in ranges]
                offsets.append(len(tokens))
        input_ids, where = np.array(tokens, np.int32), np.array(offsets, np.int32)
        labels = np.full(len(tokens), IGNORED, np.int32)
        for first, last in trained:
            labels[first:last] = input_ids[first:last]
        values = None if self.groups.values is None else np.repeat(self.groups.values[written], self.groups.size)
        writer.write(input_ids, labels, where, values)
        total.rows += len(written)
        total.tokens += len(tokens)
        total.labelled_tokens += int(count_labels(labels, where).sum())

    def _rendered(self, conversations: range, total: TokenizeResult) -> Iterator[tuple[int, list[Rendered]]]:
        """(number of the group, its conversations as text), without the groups that the template refuses."""
        size = self.groups.size
        for first in conversations[::size]:
            try:
                yield first // size, [self._render(number) for number in range(first, first + size)]
            except TemplateRefusedRow as refusal:
                total.dropped.append((first // size, REFUSED, refusal.reason))
            except _Disagreement:
                total.disagrees = True
                return

    def _trained_parts(self, number: int, group: Sequence[_Encoded], total: TokenizeResult) -> list[Ranges]:
        """Token ranges that are trained on, per conversation, after truncation; an empty list for a dropped group."""
        most, excess, parts = self.max_length, list[int](), list[Ranges]()
        for at, each in enumerate(group):
            length, borrowed = len(each.encoding), at > 0 and self.groups.has_mismatched_answers
            if not borrowed:
                total.saw(length)
                total.uncounted_rows += each.uncounted > 0
                total.uncounted_characters += each.uncounted
                excess.append(max(0, length - most))
                if length > most and not self.truncate:
                    total.dropped.append((number, TOO_LONG, each.length))
                    return []
            whole = trained_tokens(each.encoding, each.spans, each.characters)
            ranges = [(first, min(last, most)) for first, last in whole if first < most]
            # No position predicts the first token.
            if not any(last > max(first, 1) for first, last in ranges):
                reason = NO_ANSWER_LEFT if length > most else NOTHING_TO_LEARN if each.spans else NO_ANSWER_SPAN
                total.dropped.append((number, reason, each.length))
                return []
            parts.append(ranges)
        total.truncated_rows += any(excess)
        total.truncated_tokens += sum(excess)
        return parts

    def _beginning(self, number: int, at: int) -> _Encoded:
        """The beginning of conversation `at` of group `number`: as much as its tokens can be kept."""
        number = number * self.groups.size + at
        rendered = self._render(number)
        encoding, seen = first_tokens(self.template.tokenizer.backend, rendered.text, self.max_length)
        if seen > self._needed.beginning:
            rendered = self._render(number, NeededSpans(self._enough, seen))
        return _Encoded.beginning(rendered, encoding, seen)

    def _render(self, number: int, needed: NeededSpans | None = None) -> Rendered:
        conversation = self.groups.conversations[number]
        shape = self._renderer.shape_of(conversation) if self.fills_skeletons else None
        fast = self._renderer.render_as(shape, conversation) if shape else None
        if fast is None or shape is None:
            return self._rendered_slowly(number, needed or self._needed)
        if number % _CHECKED_AFTERWARDS == 0 and not self._agree(shape, conversation):
            raise _Disagreement
        return fast

    def _rendered_slowly(self, number: int, needed: NeededSpans) -> Rendered:
        try:
            return self.template.render(self.groups.conversations[number], needed)
        except TemplateTooCostly as error:
            error.row = number // self.groups.size
            raise


@dataclass
class _Encoded:
    """A conversation as tokens; for a long one only its beginning."""

    encoding: Encoding
    spans: list[tuple[int, int]]
    characters: int
    """Characters that were tokenised."""
    uncounted: int
    """Characters that were not tokenised."""

    @classmethod
    def whole(cls, rendered: Rendered, encoding: Encoding) -> _Encoded:
        return cls(encoding, rendered.spans, len(rendered.text), 0)

    @classmethod
    def beginning(cls, rendered: Rendered, encoding: Encoding, seen: int) -> _Encoded:
        spans = [(begin, min(end, seen)) for begin, end in rendered.spans if begin < seen]
        return cls(encoding, spans, seen, len(rendered.text) - seen)

    @property
    def length(self) -> str:
        """The number of tokens, for messages."""
        tokens = f"{len(self.encoding):,} tokens"
        return f"over {tokens}, {self.characters + self.uncounted:,} characters" if self.uncounted else tokens


class _Disagreement(Exception):
    pass
