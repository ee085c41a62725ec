import numpy as np
import pytest

from ascendtune.data.collate import collate, hash_of_batch


class Rows:
    """What `TokenDataset` gives, from lists."""

    def __init__(self, *rows):
        self._rows = [(np.array(ids, np.int32), np.array(labels, np.int32)) for ids, labels in rows]

    def row(self, index):
        return self._rows[index]


ROWS = Rows(([5, 6, 7], [-100, 6, 7]), ([8, 9, 10, 11], [8, -100, 10, 11]), ([12], [12]))


def test_packed_documents_predict_their_own_next_token_only():
    batch = collate(ROWS, [(0, 1), (2,)], packed=True, pad_id=0)
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9, 10, 11, 12]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 2, 3, 0]]
    assert batch.cu_seqlens == (0, 3, 7, 8)
    # Position 2 ends a document: it must not predict the labelled first token of the next one.
    assert batch.target_index.tolist() == [0, 1, 4, 5]
    assert batch.targets.tolist() == [6, 7, 10, 11]
    assert batch.tokens == 8


def test_padding_is_on_the_right_and_is_not_predicted():
    batch = collate(ROWS, [(0,), (1,)], packed=False, pad_id=0)
    assert batch.input_ids.tolist() == [[5, 6, 7, 0], [8, 9, 10, 11]]
    assert batch.position_ids is None and batch.cu_seqlens is None
    assert batch.target_index.tolist() == [0, 1, 5, 6]
    assert batch.targets.tolist() == [6, 7, 10, 11]
    assert batch.tokens == 7


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
