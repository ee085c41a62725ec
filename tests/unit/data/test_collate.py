import numpy as np
import pytest

from ascendtune.data.collate import collate, hash_of_batch


class Rows:
    """What `TokenDataset` gives, from lists."""

    def __init__(self, *rows, group_size=1, values=()):
        self._rows = [(np.array(ids, np.int32), np.array(labels, np.int32)) for ids, labels in rows]
        self.group_size = group_size
        self.values = np.array(values, np.float32)
        self.lengths = np.array([len(ids) for ids, _ in self._rows], np.int32)

    def row(self, index):
        return self._rows[index]


ROWS = Rows(([5, 6, 7], [-100, 6, 7]), ([8, 9, 10, 11], [8, -100, 10, 11]), ([12], [12]))


def test_packed_documents_predict_their_own_next_token_only():
    batch = collate(ROWS, [(0, 1), (2,)], padding_free=True, pad_id=0)
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9, 10, 11, 12]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 2, 3, 0]]
    assert batch.cu_seqlens == (0, 3, 7, 8)
    # Position 2 ends a document: it must not predict the labelled first token of the next one.
    assert batch.target_index.tolist() == [0, 1, 4, 5]
    assert batch.targets.tolist() == [6, 7, 10, 11]
    assert batch.tokens == 8


def test_padding_is_on_the_right_and_is_not_predicted():
    batch = collate(ROWS, [(0,), (1,)], padding_free=False, pad_id=0)
    assert batch.input_ids.tolist() == [[5, 6, 7, 0], [8, 9, 10, 11]]
    assert batch.position_ids is None and batch.cu_seqlens is None
    assert batch.target_index.tolist() == [0, 1, 5, 6]
    assert batch.targets.tolist() == [6, 7, 10, 11]
    assert batch.tokens == 7


@pytest.mark.parametrize("padding_free", [True, False])
def test_every_token_of_a_long_row_is_predicted_from_the_one_before_it(padding_free):
    lengths = (5000, 3, 1500)
    rows = [(np.arange(length) + 10_000 * number, np.arange(length) + 10_000 * number) for number, length in
            enumerate(lengths)]  # fmt: skip
    batch = collate(Rows(*rows), [(0,), (1,), (2,)], padding_free=padding_free, pad_id=0)
    seen = batch.input_ids.reshape(-1)[batch.target_index]
    # Tokens count upwards, so that the next token is the one after it.
    assert batch.targets.tolist() == (seen + 1).tolist()
    assert len(batch.targets) == sum(lengths) - len(lengths)


# Two pairs: (0, 1) and (2, 3).
PAIRS = Rows(
    ([5, 6, 7], [-100, 6, 7]),
    ([5, 8], [-100, 8]),
    ([9, 10], [-100, 10]),
    ([9, 11, 12, 13], [-100, 11, 12, 13]),
    group_size=2,
    values=[0.5, 2],
)


def test_a_group_goes_whole_into_a_padding_free_batch():
    batch = collate(PAIRS, [(1,), (0,)], padding_free=True, pad_id=0)
    assert batch.input_ids.tolist() == [[9, 10, 9, 11, 12, 13, 5, 6, 7, 5, 8]]
    assert batch.position_ids.tolist() == [[0, 1, 0, 1, 2, 3, 0, 1, 2, 0, 1]]
    assert batch.cu_seqlens == (0, 2, 6, 9, 11)
    assert batch.target_index.tolist() == [0, 2, 3, 4, 6, 7, 9]
    assert batch.targets.tolist() == [10, 11, 12, 13, 6, 7, 8]
    assert batch.documents == 4
    assert batch.target_document.tolist() == [0, 1, 1, 1, 2, 2, 3]
    assert batch.last_index.tolist() == [1, 5, 8, 10]
    assert batch.values.tolist() == [2, 0.5] and batch.values.dtype == np.float32
    assert batch.rows == (2, 3, 0, 1)


def test_a_group_goes_whole_into_a_padded_batch():
    batch = collate(PAIRS, [(1,), (0,)], padding_free=False, pad_id=0)
    assert batch.input_ids.tolist() == [[9, 10, 0, 0], [9, 11, 12, 13], [5, 6, 7, 0], [5, 8, 0, 0]]
    assert batch.documents == 4
    assert batch.target_document.tolist() == [0, 1, 1, 1, 2, 2, 3]
    flat = batch.input_ids.reshape(-1)
    assert batch.last_index.dtype == batch.target_document.dtype == np.int64
    assert flat[batch.last_index].tolist() == [10, 13, 7, 8]
    assert batch.rows == (2, 3, 0, 1)


def test_rows_on_their_own_pay_nothing_for_groups():
    batch = collate(ROWS, [(0, 1)], padding_free=True, pad_id=0)
    assert batch.documents == 0 and batch.rows == ()
    assert len(batch.target_document) == len(batch.last_index) == len(batch.values) == 0


def test_the_hash_sees_every_row_and_value_of_a_group():
    before = hash_of_batch(PAIRS, [(0,), (1,)])
    rows = PAIRS._rows
    other_rejected = Rows(*rows[:3], ([9, 11, 12, 14], [-100, 11, 12, 14]), group_size=2, values=[0.5, 2])
    other_value = Rows(*rows, group_size=2, values=[0.5, 1])
    assert len({before, hash_of_batch(other_rejected, [(0,), (1,)]), hash_of_batch(other_value, [(0,), (1,)])}) == 3


@pytest.mark.parametrize(
    "other",
    [
        Rows(([5, 6, 8], [-100, 6, 7]), ([8, 9, 10, 11], [8, -100, 10, 11]), ([12], [12])),
        Rows(([5, 6, 7], [-100, -100, 7]), ([8, 9, 10, 11], [8, -100, 10, 11]), ([12], [12])),
    ],
    ids=["a token", "a label"],
)
def test_the_hash_notices_every_change(other):
    sequences = [(0, 1), (2,)]
    assert hash_of_batch(ROWS, sequences) == hash_of_batch(ROWS, sequences)
    assert hash_of_batch(ROWS, sequences) != hash_of_batch(other, sequences)
    assert hash_of_batch(ROWS, [(0, 1), (2,)]) != hash_of_batch(ROWS, [(0,), (1, 2)])
