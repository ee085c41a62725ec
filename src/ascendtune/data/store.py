"""Tokens on disk: Arrow IPC files that are mapped into memory, so that N processes share one copy.

A data set is a directory of shards `00000.arrow`, `00001.arrow`, …, in row order. Columns of every shard:
`input_ids` and `labels` (list<int32>, equal lengths, -100 where not trained on), `label_count` (int32) and `value`
(float32). The schema's metadata contains the group size: the number of consecutive rows of a group.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ascendtune.core.errors import MachineError, translated_disk_errors

IGNORED = -100
Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]

_LIST = pa.list_(pa.field("item", pa.int32(), nullable=False))
_SCHEMA = pa.schema(
    [
        pa.field("input_ids", _LIST, nullable=False),
        pa.field("labels", _LIST, nullable=False),
        pa.field("label_count", pa.int32(), nullable=False),
        pa.field("value", pa.float32(), nullable=False),
    ]
)
_GROUP_SIZE = b"group_size"
_TOKENS_PER_BATCH = 1 << 20
"""Minimum number of tokens of a record batch, except for the last one of a shard."""


class TokenDataset:
    """Rows of token ids and labels. Opening reads the metadata only; tokens are read when they are used.

    Rows come in groups: group i is the rows from i * `group_size` on. A pair is the chosen answer, then the rejected
    one; a single answer is followed by a mismatched one, the same prompt with another row's answer.
    """

    def __init__(
        self, shards: list[pa.MemoryMappedFile], batches: list[pa.RecordBatch], *, group_size: int = 1
    ) -> None:
        self._shards = shards
        self.group_size = group_size
        self._parts = [_Part(batch) for batch in batches]
        self._starts = np.cumsum([0, *(len(part.offsets) - 1 for part in self._parts)]).tolist()

    @classmethod
    def open(cls, path: str | Path) -> TokenDataset:
        """The data set in the directory `path`.

        Raises:
            MachineError: it is missing or damaged.
        """
        files = sorted(Path(path).glob("*.arrow"))
        if not files:
            raise _damaged(path, "it contains no .arrow file")
        shards, batches, group_size = [], [], 1
        for file in files:
            try:
                shard = pa.memory_map(str(file))
                reader = pa.ipc.open_file(shard)
                if not reader.schema.equals(_SCHEMA):
                    raise _damaged(file, "its columns are not those of prepared tokens")
                group_size = int((reader.schema.metadata or {}).get(_GROUP_SIZE, 1))
                batches += [reader.get_batch(index) for index in range(reader.num_record_batches)]
            except (pa.ArrowException, OSError) as error:
                raise _damaged(file, str(error)) from error
            shards.append(shard)
        return cls(shards, batches, group_size=group_size)

    @cached_property
    def lengths(self) -> Int32:
        """(rows,) int32: tokens of each row."""
        lengths = [np.diff(part.offsets) for part in self._parts]
        return np.concatenate(lengths) if lengths else np.empty(0, np.int32)

    @cached_property
    def label_counts(self) -> Int32:
        """(rows,) int32: positions of each row that are predicted, i.e. how many of labels[1:] are not -100."""
        counts = [part.label_counts for part in self._parts]
        return np.concatenate(counts) if counts else np.empty(0, np.int32)

    @cached_property
    def values(self) -> Float32:
        """(groups,) float32: the margin of a pair (0 if none is given); 1 for a good single answer, 0 for a bad one; 0
        if a group is one row."""
        values = [part.values for part in self._parts]
        return np.concatenate(values)[:: self.group_size] if values else np.empty(0, np.float32)

    def rows_by_length(self) -> dict[int, int]:
        """Number of tokens -> number of rows with this length, ascending."""
        rows = Counter[int]()
        for part in self._parts:
            counts = np.bincount(np.diff(part.offsets))
            lengths = np.flatnonzero(counts)
            rows.update(dict(zip(lengths.tolist(), counts[lengths].tolist(), strict=True)))
        return dict(sorted(rows.items()))

    def __len__(self) -> int:
        return int(self._starts[-1])

    def content_hash(self) -> str:
        """Hash, of 16 hex digits, of all rows in order, independent of their division into shards."""
        digest = hashlib.blake2b(self.lengths.astype("<i4").tobytes(), digest_size=8)
        digest.update(self.values.astype("<f4").tobytes())
        for column in ("input_ids", "labels"):
            for part in self._parts:
                tokens = getattr(part, column)[part.offsets[0] : part.offsets[-1]]
                digest.update(np.ascontiguousarray(tokens, dtype="<i4").data)
        return digest.hexdigest()

    def row(self, index: int) -> tuple[Int32, Int32]:
        """`input_ids` and `labels` of one row, both (tokens,) int32: read-only views of the file, nothing is copied."""
        if not 0 <= index < self._starts[-1]:
            raise IndexError(f"row {index} of {len(self)}")
        which = bisect_right(self._starts, index) - 1
        part = self._parts[which]
        at = index - self._starts[which]
        begin, end = part.offsets[at], part.offsets[at + 1]
        return part.input_ids[begin:end], part.labels[begin:end]


class _Part:
    """One record batch as flat arrays, whose indexing takes a tenth of the time of Arrow's scalars."""

    __slots__ = ("input_ids", "label_counts", "labels", "offsets", "values")

    def __init__(self, batch: pa.RecordBatch) -> None:
        tokens, labels, counts, values = batch.columns
        self.offsets = _as_numpy(tokens.offsets)
        self.input_ids = _as_numpy(tokens.values)
        self.labels = _as_numpy(labels.values)
        self.label_counts = _as_numpy(counts)
        self.values = _as_numpy(values)


def _as_numpy(array: pa.Array) -> Any:
    # Not `to_numpy`: it imports pandas if it is installed, 0.4 s before the first step.
    return np.from_dlpack(array)


class ShardWriter:
    """Writes one shard, in record batches of about a million tokens; a context manager.

    The shard is complete when the block ends without error.
    """

    def __init__(self, path: Path, *, group_size: int = 1) -> None:
        self.path = path
        self._schema = _SCHEMA.with_metadata({_GROUP_SIZE: str(group_size)})
        self._waiting: list[tuple[Int32, Int32, Int32, Float32]] = []
        self._tokens = 0
        with translated_disk_errors(path, "writing tokens"):
            self._file = pa.OSFile(str(path), "wb")
            self._writer = pa.ipc.new_file(self._file, self._schema)

    def write(self, input_ids: Int32, labels: Int32, offsets: Int32, values: Float32 | None = None) -> None:
        """Append rows.

        Args:
            input_ids: (tokens,) int32, the rows one after the other.
            labels: (tokens,) int32, -100 for tokens that are not trained on.
            offsets: (rows + 1,) int32, begin of each row; the last is the number of tokens.
            values: (rows,) float32, equal within a group; default is 0.
        """
        if len(offsets) < 2:
            return
        values = np.zeros(len(offsets) - 1, np.float32) if values is None else values
        self._waiting.append((input_ids, labels, offsets, values))
        self._tokens += len(input_ids)
        if self._tokens >= _TOKENS_PER_BATCH:
            self._write_batch()

    def _write_batch(self) -> None:
        """Write the buffered rows as one record batch: each batch adds to the time of opening a data set."""
        input_ids, labels, offsets, values = (list(each) for each in zip(*self._waiting, strict=True))
        begins = np.cumsum([0, *map(len, input_ids)])
        ends = [each[1:] + begin for each, begin in zip(offsets, begins, strict=False)]
        starts = np.concatenate(([0], *ends)).astype(np.int32)
        tokens, wanted = np.concatenate(input_ids), np.concatenate(labels)
        where = pa.array(starts)
        columns = [
            pa.ListArray.from_arrays(where, pa.array(tokens), type=_LIST),
            pa.ListArray.from_arrays(where, pa.array(wanted), type=_LIST),
            pa.array(count_labels(wanted, starts)),
            pa.array(np.concatenate(values)),
        ]
        self._waiting, self._tokens = [], 0
        with translated_disk_errors(self.path, "writing tokens"):
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                if self._waiting:
                    self._write_batch()
                with translated_disk_errors(self.path, "writing tokens"):
                    self._writer.close()
                    self._file.close()
        finally:
            # After a failure nothing needs to be written, but an open file would keep its space on a full disk.
            with suppress(OSError):
                self._file.close()


def count_labels(labels: Int32, offsets: Int32) -> Int32:
    """(rows,) int32: per row how many of labels[1:] are not -100. No position predicts the first token of a row."""
    trained = labels != IGNORED
    starts = offsets[:-1][np.diff(offsets) > 0]
    trained[starts] = False
    before = np.concatenate(([0], np.cumsum(trained, dtype=np.int64)))
    counts: Int32 = np.diff(before[offsets]).astype(np.int32)
    return counts


def _damaged(path: str | Path, why: str) -> MachineError:
    return MachineError(
        f"prepared tokens cannot be read: {why}",
        code="prepared-data-damaged",
        remedy="delete this directory and start again: it is a cache and will be rebuilt",
        where=path,
    )
