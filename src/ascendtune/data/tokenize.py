"""From conversations to shards of tokens with labels; in one process, or in several that each take shards in turn.

Rows are cut into shards by their number alone, so the result is the same, byte for byte, for any number of processes.
Workers are forked: the rows are there already, nothing is sent to them but shard numbers.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import Encoding

from ascendtune.data.conversation import Conversation
from ascendtune.data.labels import learnt_tokens
from ascendtune.data.skeleton import Shape, SkeletonRenderer
from ascendtune.data.spans import Refused, Rendered
from ascendtune.data.store import IGNORED, ShardWriter, count_labels
from ascendtune.data.template import ChatTemplate
from ascendtune.data.workers import run_in_workers

NO_ANSWER_LEFT = "no answer left within max_length"
NOTHING_TO_LEARN = "nothing to learn in it"
TOO_LONG = "longer than max_length"
REFUSED = "the chat template refuses it"

_ROWS_PER_BATCH = 512
_SMALLEST_SHARD = 4096
_MOST_SHARDS = 256
_ROWS_PER_EXTRA_PROCESS = 4000
_CHECKED_OF_EACH_SHAPE = 64
_CHECKED_AFTERWARDS = 1000

Progress = Callable[[int, int], None]
"""Called with (rows done, rows in all)."""


@dataclass
class Outcome:
    """What became of rows; `add` joins the outcomes of shards. Rows are named by their number."""

    rows: int = 0
    tokens: int = 0
    labelled_tokens: int = 0
    """Labels that are predicted: all but a label on a row's first token."""
    truncated_rows: int = 0
    truncated_tokens: int = 0
    longest: int = 0
    """Tokens of the longest row, before truncation."""
    shortest: int | None = None
    dropped: list[tuple[int, str, str]] = field(default_factory=list)
    """(row, reason, detail): rows that were not written."""
    disagrees: bool = False
    """The fast path of rendering went wrong: nothing of this can be used."""

    def add(self, other: Outcome) -> None:
        self.rows += other.rows
        self.tokens += other.tokens
        self.labelled_tokens += other.labelled_tokens
        self.truncated_rows += other.truncated_rows
        self.truncated_tokens += other.truncated_tokens
        self.longest = max(self.longest, other.longest)
        shortest = [each for each in (self.shortest, other.shortest) if each is not None]
        self.shortest = min(shortest, default=None)
        self.dropped += other.dropped
        self.disagrees |= other.disagrees


def tokenize(
    conversations: Sequence[Conversation],
    template: ChatTemplate,
    directory: Path,
    *,
    max_length: int,
    on_long_row: Literal["truncate", "drop", "fail"],
    processes: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Write `conversations` as a `TokenDataset` into `directory`, an empty one.

    Truncation cuts the end of a row, and with it its EOS. Rows that are dropped are listed in the outcome; what `fail`
    means is left to the caller, who knows where rows stand.

    Raises:
        MachineError: the disk is full or read-only, or a process was killed.
    """
    job = _Job(conversations, template, directory, max_length, truncate=on_long_row == "truncate")
    with _one_thread_a_process():
        job.take_fast_path()
        outcome = job.run(_processes(processes, len(conversations)), progress)
        if outcome.disagrees:
            job.shapes = None
            outcome = job.run(_processes(processes, len(conversations)), progress)
    return outcome


@dataclass
class _Job:
    conversations: Sequence[Conversation]
    template: ChatTemplate
    directory: Path
    max_length: int
    truncate: bool
    shapes: list[Shape | None] | None = None
    """Of every row, None for one that is rendered the slow way; None when all are."""

    def __post_init__(self) -> None:
        self._renderer = SkeletonRenderer(self.template)

    def take_fast_path(self) -> None:
        """Look at the rows' shapes; both ways of rendering must give the same for the first rows of each."""
        if not self._renderer.usable:
            return
        shapes: list[Shape | None] = []
        one_of_each: dict[Shape, Shape] = {}
        seen: Counter[Shape] = Counter()
        for conversation in self.conversations:
            shape = self._renderer.shape_of(conversation)
            if shape is None:
                shapes.append(None)
                continue
            shapes.append(one_of_each.setdefault(shape, shape))
            seen[shape] = count = seen[shape] + 1
            if count <= _CHECKED_OF_EACH_SHAPE and not self._agree(shape, conversation):
                return
        self.shapes = shapes

    def _agree(self, shape: Shape, conversation: Conversation) -> bool:
        fast = self._renderer.render_as(shape, conversation)
        try:
            return fast is None or fast == self.template.render(conversation)
        except Refused:
            return False

    def run(self, processes: int, progress: Progress | None) -> Outcome:
        count = len(self.conversations)
        size = max(_SMALLEST_SHARD, -(-count // _MOST_SHARDS))
        shards = [range(begin, min(begin + size, count)) for begin in range(0, count, size)]
        made: dict[int, Outcome] = {}
        done = 0
        with closing(
            run_in_workers(lambda number: self._write(number, shards[number]), len(shards), processes)
        ) as results:
            for number, outcome in results:
                made[number] = outcome
                done += len(shards[number])
                if progress:
                    progress(done, count)
                if outcome.disagrees:
                    return outcome
        total = Outcome()
        for number in range(len(shards)):
            total.add(made[number])
        return total

    def _write(self, number: int, rows: range) -> Outcome:
        total, remaining = Outcome(), iter(rows)
        with ShardWriter(self.directory / f"{number:05d}.arrow") as writer:
            while (batch := list(islice(remaining, _ROWS_PER_BATCH))) and not total.disagrees:
                self._write_batch(batch, writer, total)
        return total

    def _write_batch(self, numbers: list[int], writer: ShardWriter, total: Outcome) -> None:
        rows = list(self._rendered(numbers, total))
        texts = [rendered.text for _, rendered in rows]
        encodings = self.template.tokenizer.backend.encode_batch(texts, add_special_tokens=False)
        tokens: list[int] = []
        learnt: list[tuple[int, int]] = []
        offsets = [0]
        for (number, rendered), encoding in zip(rows, encodings, strict=True):
            ranges = self._learnt_part(number, rendered, encoding, total)
            if not ranges:
                continue
            begin = len(tokens)
            tokens += encoding.ids[: self.max_length]
            learnt += [(begin + first, begin + last) for first, last in ranges]
            offsets.append(len(tokens))
        input_ids, where = np.array(tokens, np.int32), np.array(offsets, np.int32)
        labels = np.full(len(tokens), IGNORED, np.int32)
        for first, last in learnt:
            labels[first:last] = input_ids[first:last]
        writer.write(input_ids, labels, where)
        total.rows += len(offsets) - 1
        total.tokens += len(tokens)
        total.labelled_tokens += int(count_labels(labels, where).sum())

    def _rendered(self, numbers: list[int], total: Outcome) -> Iterator[tuple[int, Rendered]]:
        for number in numbers:
            try:
                yield number, self._render(number)
            except Refused as refusal:
                total.dropped.append((number, REFUSED, refusal.reason))
            except _Disagreement:
                total.disagrees = True
                return

    def _learnt_part(
        self, number: int, rendered: Rendered, encoding: Encoding, total: Outcome
    ) -> list[tuple[int, int]]:
        """Token ranges that are learnt after truncation; none for a row that is dropped."""
        length, most = len(encoding), self.max_length
        total.longest = max(total.longest, length)
        total.shortest = length if total.shortest is None else min(total.shortest, length)
        if length > most and not self.truncate:
            total.dropped.append((number, TOO_LONG, f"{length:,} tokens"))
            return []
        whole = learnt_tokens(encoding, rendered.spans, len(rendered.text))
        ranges = [(first, min(last, most)) for first, last in whole if first < most]
        # A label on the first token is predicted by nothing.
        if not any(last > max(first, 1) for first, last in ranges):
            reason = NO_ANSWER_LEFT if length > most else NOTHING_TO_LEARN
            total.dropped.append((number, reason, f"{length:,} tokens"))
            return []
        if length > most:
            total.truncated_rows += 1
            total.truncated_tokens += length - most
        return ranges

    def _render(self, number: int) -> Rendered:
        conversation = self.conversations[number]
        shape = self.shapes[number] if self.shapes else None
        fast = self._renderer.render_as(shape, conversation) if shape else None
        if fast is None or shape is None:
            return self.template.render(conversation)
        if number % _CHECKED_AFTERWARDS == 0 and not self._agree(shape, conversation):
            raise _Disagreement
        return fast


class _Disagreement(Exception):
    pass


def _processes(wanted: int | None, rows: int) -> int:
    if wanted is not None:
        return wanted
    # A fork is paid back only by thousands of rows.
    return max(1, min(len(os.sched_getaffinity(0)), 16, rows // _ROWS_PER_EXTRA_PROCESS))


@contextmanager
def _one_thread_a_process() -> Iterator[None]:
    """We share the work out ourselves; threads of the tokenizer on top would only wait for each other."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before
