import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascendtune.data.plan import BatchPlan, micro_batches_of_rank

LENGTHS = np.array([7, 3, 9, 4, 4, 8, 2, 6, 5, 1], np.int32)
LABELS = LENGTHS // 2


def plan(**changes):
    return BatchPlan(LENGTHS, LABELS, **{"capacity": 10, "global_batch": 2, "seed": 1, **changes})


@pytest.mark.parametrize("capacity", [None, 10])
def test_an_epoch_shows_every_row_once(capacity):
    epoch = plan(capacity=capacity)
    rows = [row for step in range(epoch.steps_per_epoch) for sequence in epoch.batch(step) for row in sequence]
    assert sorted(rows) == list(range(10))


def test_epochs_differ_and_repeat_under_the_same_seed():
    first, second = plan(), plan()
    steps = first.steps_per_epoch
    assert [first.batch(step) for step in range(2 * steps)] == [second.batch(step) for step in range(2 * steps)]
    assert [first.batch(step) for step in range(steps)] != [first.batch(steps + step) for step in range(steps)]
    assert [first.batch(step) for step in range(steps)] != [plan(seed=2).batch(step) for step in range(steps)]


@pytest.mark.parametrize("capacity", [None, 10])
def test_no_epoch_repeats_the_order_of_another(capacity):
    many = plan(capacity=capacity)
    steps = many.steps_per_epoch
    orders = {str([many.batch(epoch * steps + step) for step in range(steps)]) for epoch in range(12)}
    assert len(orders) == 12


def test_without_a_seed_rows_keep_their_order():
    ordered = plan(capacity=None, seed=None)
    assert [row for step in range(ordered.steps_per_epoch) for (row,) in ordered.batch(step)] == list(range(10))


def test_a_late_step_needs_no_earlier_one():
    sought = 7 * plan().steps_per_epoch + 1
    walked = plan()
    for step in range(sought):
        walked.batch(step)
    assert plan().batch(sought) == walked.batch(sought)


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 3))
def test_ranks_share_the_batch_without_loss_or_repetition(sequences, world_size, per_device):
    batch = [(row,) for row in range(sequences)]
    shares = [
        micro_batches_of_rank(batch, rank=rank, world_size=world_size, per_device=per_device)
        for rank in range(world_size)
    ]
    assert len({len(share) for share in shares}) == 1, "every rank must run the same number of micro-batches"
    seen = [row for share in shares for micro in share for (row,) in micro]
    assert sorted(seen) == list(range(sequences))
    assert all(len(micro) <= per_device for share in shares for micro in share)


def test_padding_is_counted_where_there_is_some():
    padded = BatchPlan(np.array([4, 1], np.int32), np.array([1, 1]), capacity=None, global_batch=2, seed=None)
    assert padded.padding_ratio(per_device=2) == pytest.approx(3 / 8)
    assert padded.padding_ratio(per_device=1) == 0


def test_padding_is_that_of_the_micro_batches_where_the_global_batch_ends_within_one():
    lengths = np.array([9, 1, 1, 9, 1, 1, 9], np.int32)
    resumed = BatchPlan(lengths, lengths, capacity=None, global_batch=3, seed=None)
    # Of two sequences on one device: (9, 1) (1), (9, 1) (1), (9).
    assert resumed.padding_ratio(per_device=2) == pytest.approx(1 - 31 / (18 + 1 + 18 + 1 + 9))


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=30),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([None, 40]),
)
def test_groups_partition_the_data_over_an_epoch_and_over_ranks(pairs, global_batch, world_size, per_device, capacity):
    lengths = np.array(pairs, np.int32).reshape(-1)
    labels = np.arange(1, len(lengths) + 1, dtype=np.int32)
    grouped = BatchPlan(lengths, labels, capacity=capacity, global_batch=global_batch, seed=3, group_size=2)
    seen, shared = [], []
    for step in range(grouped.steps_per_epoch):
        sequences = grouped.batch(step)
        assert all(len(sequence) == 1 for sequence in sequences), "one group a sequence, whatever the capacity"
        groups = [group for (group,) in sequences]
        rows = [row for group in groups for row in (2 * group, 2 * group + 1)]
        assert grouped.groups(sequences) == len(groups)
        assert grouped.tokens(sequences) == lengths[rows].sum()
        assert grouped.labelled_tokens(sequences) == labels[rows].sum()
        seen += groups
        for rank in range(world_size):
            micro = micro_batches_of_rank(sequences, rank=rank, world_size=world_size, per_device=per_device)
            shared += [group for part in micro for (group,) in part]
    assert sorted(seen) == sorted(shared) == list(range(len(pairs)))


def test_padding_of_pairs_is_that_of_their_rows():
    lengths = np.array([4, 1, 2, 2], np.int32)
    grouped = BatchPlan(lengths, lengths, capacity=None, global_batch=2, seed=None, group_size=2)
    assert grouped.padding_ratio(per_device=2) == pytest.approx(1 - 9 / 16)
    assert grouped.padding_ratio(per_device=1) == pytest.approx(1 - 9 / 12)


@given(
    sizes=st.lists(st.integers(0, 12), min_size=2, max_size=5).filter(any),
    capacity=st.sampled_from([None, 10]),
    global_batch=st.integers(1, 4),
    group_size=st.sampled_from([1, 2]),
    data=st.data(),
)
def test_data_sets_that_are_apart_share_no_step(sizes, capacity, global_batch, group_size, data):
    groups = sum(sizes)
    lengths = np.array(
        data.draw(st.lists(st.integers(1, 10), min_size=groups * group_size, max_size=groups * group_size)), np.int32
    )
    names = {str(number): size for number, size in enumerate(sizes)}
    apart = BatchPlan(
        lengths, lengths // 2, capacity=capacity, global_batch=global_batch, seed=None, group_size=group_size,
        datasets=names, apart=True,
    )  # fmt: skip
    of_group = np.repeat(np.arange(len(sizes)), sizes)
    seen = []
    for step in range(apart.steps_per_epoch):
        sequences = apart.batch(step)
        rows = [group for sequence in sequences for group in sequence]
        (dataset,) = set(of_group[rows].tolist())
        assert apart.dataset_of(sequences[0]) == dataset and 0 < len(sequences) <= global_batch
        tokens = lengths.reshape(-1, group_size).sum(axis=1)[rows].sum()
        expected = [0] * len(sizes)
        expected[dataset] = tokens
        assert apart.tokens_by_dataset(sequences) == expected
        if capacity and group_size == 1:
            assert all(lengths[list(sequence)].sum() <= capacity for sequence in sequences)
        seen += rows
    assert sorted(seen) == list(range(groups))
    assert [each.stop - each.start for each in apart.groups_of_datasets()] == sizes


def test_tokens_of_a_mixture_add_up_to_those_of_the_step():
    mixed = plan(datasets={"a": 3, "b": 0, "c": 7})
    steps = [mixed.batch(step) for step in range(mixed.steps_per_epoch)]
    counts = np.array([mixed.tokens_by_dataset(step) for step in steps])
    assert counts.sum(axis=1).tolist() == [mixed.tokens(step) for step in steps]
    assert counts.sum(axis=0).tolist() == [LENGTHS[:3].sum(), 0, LENGTHS[3:].sum()]
