"""Converts texts to shards of tokens, all of them trained on. A long text becomes several rows; no token is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from ascendtune.data.conversation import Text
from ascendtune.data.long_text import ChunkedTokenizer, IndivisibleText, characters_for, first_tokens
from ascendtune.data.shards import (
    INDIVISIBLE,
    MOST_SHARDS,
    NOTHING_TO_LEARN,
    TOO_LONG,
    Progress,
    TokenizeResult,
    processes_for,
    ranges_of,
    write_shards,
)
from ascendtune.data.store import Int32, ShardWriter, count_labels
from ascendtune.data.tokenizer import Tokenizer

_CHARACTERS_PER_BATCH = 1_000_000
_ROWS_CUT_AT_A_TIME = 1 << 20
_CHARACTERS_PER_SHARD = 1_000_000
_CHARACTERS_PER_EXTRA_PROCESS = 2_000_000


def tokenize_texts(
    texts: Sequence[Text],
    tokenizer: Tokenizer,
    directory: Path,
    *,
    max_length: int,
    on_long_row: Literal["truncate", "drop", "fail"],
    sizes: Sequence[int] | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> TokenizeResult:
    """Write `texts` as a `TokenDataset` into `directory`, which must be empty.

    A text begins with the tokenizer's own prefix (BOS, or nothing) and ends with EOS. One that is longer than
    `max_length` is split into consecutive rows of that length, of which the last one ends with EOS; `drop` and `fail`
    skip it and list it in the result. With `max_length` 2 a last single token cannot join another row: it is cut off
    and counted.

    Args:
        sizes: number of texts of each data set, in their order; default: all are of one.

    Raises:
        MachineError: the disk is full or read-only, or a process was killed.
    """
    job = _Job(texts, tokenizer, max_length, split=on_long_row == "truncate")
    characters = np.fromiter((len(each.text) for each in texts), np.uint32, len(texts))
    in_all = int(characters.sum(dtype=np.int64))
    size = max(_CHARACTERS_PER_SHARD, in_all // MOST_SHARDS)
    return write_shards(
        directory,
        [_cut(characters, size, first, end) for first, end in ranges_of(sizes or [len(texts)])],
        job.write,
        processes=processes_for(processes, in_all // _CHARACTERS_PER_EXTRA_PROCESS),
        progress=progress,
    )


def _cut(characters: npt.NDArray[np.uint32], size: int, begin: int, end: int) -> list[range]:
    """Ranges of the rows from `begin` to `end`, of about `size` characters, at least one row each.

    Args:
        characters: (rows,) uint32 characters of each row.
    """
    begins, before, last = [begin], 0, 0
    for first in range(begin, end, _ROWS_CUT_AT_A_TIME):
        part = characters[first : min(first + _ROWS_CUT_AT_A_TIME, end)].astype(np.int64)
        number_of = (before + np.cumsum(part) - part) // size
        begins += (first + np.flatnonzero(np.diff(number_of, prepend=last))).tolist()
        before, last = before + int(part.sum()), int(number_of[-1])
    return [range(first, last) for first, last in pairwise([*begins, end]) if first < last]


@dataclass
class _Job:
    texts: Sequence[Text]
    tokenizer: Tokenizer
    max_length: int
    split: bool

    def __post_init__(self) -> None:
        eos = self.tokenizer.eos_id
        self._prefix = self.tokenizer.text_prefix
        self._suffix = [] if eos is None else [eos]
        self._part_by_part = ChunkedTokenizer(self.tokenizer)

    def write(self, rows: range, writer: ShardWriter) -> TokenizeResult:
        total = TokenizeResult()
        for batch in self._batches(rows):
            self._write_batch(batch, writer, total)
        return total

    def _batches(self, rows: range) -> Iterator[range]:
        """Ranges of rows whose encodings, 100 bytes per token, fit into memory."""
        begin, characters = rows.start, 0
        for number in rows:
            length = len(self.texts[number].text)
            if length >= _CHARACTERS_PER_BATCH and begin < number:
                # A text of this length forms a batch by itself.
                yield range(begin, number)
                begin, characters = number, 0
            characters += length
            if characters >= _CHARACTERS_PER_BATCH:
                yield range(begin, number + 1)
                begin, characters = number + 1, 0
        if begin < rows.stop:
            yield range(begin, rows.stop)

    def _write_batch(self, rows: range, writer: ShardWriter, total: TokenizeResult) -> None:
        if len(rows) == 1 and len(self.texts[rows.start].text) >= _CHARACTERS_PER_BATCH:
            self._write_long(rows.start, writer, total)
            return
        texts = [self.texts[number].text for number in rows]
        # Offsets are not needed, and omitting them saves a fifth of the time.
        encodings = self.tokenizer.encode_batch(texts, offsets=False)
        tokens: list[int] = []
        offsets = [0]
        for number, encoding in zip(rows, encodings, strict=True):
            ids = [*self._prefix, *encoding.ids, *self._suffix]
            pieces = self._pieces(number, len(ids), total)
            if pieces:
                offsets += [len(tokens) + end for end in pieces]
                tokens += ids[: pieces[-1]]
        self._write(np.array(tokens, np.int32), np.array(offsets, np.int32), writer, total)

    def _write_long(self, number: int, writer: ShardWriter, total: TokenizeResult) -> None:
        """Write a text that is tokenised part by part, or only at its beginning if it is dropped anyway."""
        text = self.texts[number].text
        if not self.split and len(text) > characters_for(self.max_length):
            encoding, seen = first_tokens(self.tokenizer.backend, text, self.max_length)
            if len(encoding) > self.max_length and seen < len(text):
                total.saw(len(encoding))
                total.uncounted_rows += 1
                total.uncounted_characters += len(text) - seen
                total.dropped.append((number, TOO_LONG, f"{len(text):,} characters, over {len(encoding):,} tokens"))
                return
        try:
            ids = np.concatenate([self._prefix, self._part_by_part.encode(text), self._suffix]).astype(np.int32)
        except IndivisibleText:
            total.dropped.append((number, INDIVISIBLE, f"{len(text):,} characters"))
            return
        if pieces := self._pieces(number, len(ids), total):
            self._write(ids[: pieces[-1]], np.array([0, *pieces], np.int32), writer, total)

    def _write(self, input_ids: Int32, where: Int32, writer: ShardWriter, total: TokenizeResult) -> None:
        writer.write(input_ids, input_ids, where)
        total.tokens += len(input_ids)
        total.labelled_tokens += int(count_labels(input_ids, where).sum())

    def _pieces(self, number: int, length: int, total: TokenizeResult) -> list[int]:
        """The end of each row of tokens that a text of `length` tokens is split into; an empty list for a dropped
        text."""
        most = self.max_length
        total.saw(length)
        if length > most and not self.split:
            total.dropped.append((number, TOO_LONG, f"{length:,} tokens"))
            return []
        if length < 2:
            total.dropped.append((number, NOTHING_TO_LEARN, f"{length:,} tokens"))
            return []
        ends = piece_ends(length, most)
        if ends[-1] < length:
            total.truncated_rows += 1
            total.truncated_tokens += length - ends[-1]
        total.rows += 1
        if len(ends) > 1:
            total.split_rows += 1
            total.pieces += len(ends)
        return ends


def piece_ends(length: int, most: int) -> list[int]:
    """The end of each row of at most `most` tokens into which a text of `length` tokens is split.

    A single token, which would have no target, is not a row: the row before it gives it one more, or with `most` 2 it
    is left out.
    """
    ends = [*range(most, length, most), length]
    if length % most == 1 and length > 1:
        if most > 2:
            ends[-2] -= 1
        else:
            ends.pop()
    return ends


__all__ = ["piece_ends", "tokenize_texts"]
