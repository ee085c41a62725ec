from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascendtune.core.errors import MachineError
from ascendtune.data import store
from ascendtune.data.store import IGNORED, ShardWriter, TokenDataset

Rows = list[list[tuple[int, bool]]]


def write(path: Path, rows: Rows, batch: int = 3) -> None:
    with ShardWriter(path) as writer:
        for begin in range(0, len(rows), batch):
            part = rows[begin : begin + batch]
            flat = [pair for row in part for pair in row]
            writer.write(
                np.array([token for token, _ in flat], np.int32),
                np.array([token if learnt else IGNORED for token, learnt in flat], np.int32),
                np.cumsum([0, *map(len, part)], dtype=np.int32),
            )


rows_of_tokens = st.lists(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans()), max_size=6), max_size=12)


@given(shards=st.lists(rows_of_tokens, min_size=1, max_size=3), per_batch=st.sampled_from([4, 1 << 20]))
@settings(max_examples=40, deadline=None)
def test_token_dataset_returns_the_rows_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, shards: list[Rows], per_batch: int
) -> None:
    directory = tmp_path_factory.mktemp("tokens")
    with patch.object(store, "_TOKENS_PER_BATCH", per_batch):
        for number, rows in enumerate(shards):
            write(directory / f"{number:05d}.arrow", rows)
    rows = [row for shard in shards for row in shard]
    dataset = TokenDataset.open(directory)

    assert len(dataset) == len(rows)
    assert dataset.lengths.dtype == dataset.label_counts.dtype == np.int32
    assert dataset.lengths.tolist() == [len(row) for row in rows]
    # A row's first token is predicted by nothing, so its label does not count.
    assert dataset.label_counts.tolist() == [sum(learnt for _, learnt in row[1:]) for row in rows]
    for index, row in enumerate(rows):
        input_ids, labels = dataset.row(index)
        assert input_ids.dtype == labels.dtype == np.int32
        assert input_ids.tolist() == [token for token, _ in row]
        assert labels.tolist() == [token if learnt else IGNORED for token, learnt in row]


def test_content_hash_is_of_the_rows_and_not_of_their_shards(tmp_path: Path) -> None:
    rows = [[(1, True), (2, True)], [(3, False)], [(4, True), (5, False), (6, True)]]

    def hash_of(*shards: Rows) -> str:
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        directory.mkdir()
        for number, shard in enumerate(shards):
            write(directory / f"{number:05d}.arrow", shard, batch=2)
        return TokenDataset.open(directory).content_hash()

    assert hash_of(rows) == hash_of(rows[:1], rows[1:]) == hash_of(rows[:1], rows[1:2], rows[2:])
    others = [rows[:2], rows[::-1], [*rows[:2], [(4, True), (5, True), (6, True)]], [[*rows[0], *rows[1]], rows[2]]]
    assert len({hash_of(rows), *map(hash_of, others)}) == 5


def test_groups_have_one_value_each(tmp_path: Path) -> None:
    for number, values in enumerate(([0.5, 0.5, 1, 1], [2, 2])):
        with ShardWriter(tmp_path / f"{number:05d}.arrow", group_size=2) as writer:
            tokens = np.arange(len(values), dtype=np.int32)
            writer.write(tokens, tokens, np.arange(len(values) + 1, dtype=np.int32), np.array(values, np.float32))
    dataset = TokenDataset.open(tmp_path)
    assert (len(dataset), dataset.group_size) == (6, 2)
    assert dataset.values.tolist() == [0.5, 1, 2] and dataset.values.dtype == np.float32


def test_rows_on_their_own_are_groups_of_one(tmp_path: Path) -> None:
    write(tmp_path / "00000.arrow", [[(1, True)], [(2, True)]])
    dataset = TokenDataset.open(tmp_path)
    assert dataset.group_size == 1 and dataset.values.tolist() == [0, 0]


def test_rows_are_views_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "00000.arrow", [[(1, True), (2, True)], [(3, False)]])
    dataset = TokenDataset.open(tmp_path)
    input_ids, labels = dataset.row(0)
    assert input_ids.base is not None and labels.base is not None
    with pytest.raises(ValueError, match="read-only"):
        input_ids[0] = 5


@pytest.mark.parametrize("index", [-1, 2])
def test_a_row_that_is_not_there(tmp_path: Path, index: int) -> None:
    write(tmp_path / "00000.arrow", [[(1, True)], [(2, True)]])
    with pytest.raises(IndexError):
        TokenDataset.open(tmp_path).row(index)


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"x" * len(data)]
)
def test_a_damaged_file_is_named(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    shard = tmp_path / "00000.arrow"
    write(shard, [[(1, True)] * 50])
    shard.write_bytes(damage(shard.read_bytes()))
    with pytest.raises(MachineError) as caught:
        TokenDataset.open(tmp_path)
    assert "00000.arrow" in str(caught.value) and "rebuilt" in caught.value.remedy


def test_missing_token_dataset_raises(tmp_path: Path) -> None:
    with pytest.raises(MachineError):
        TokenDataset.open(tmp_path / "nothing")
