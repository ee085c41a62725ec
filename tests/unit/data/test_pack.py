from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ascendtune.data.plan import pack_best_fit

lengths_up_to_50 = st.lists(st.integers(1, 50), min_size=1, max_size=200).map(lambda each: np.array(each, np.int32))


@given(lengths_up_to_50, st.randoms(use_true_random=False))
def test_every_row_is_in_exactly_one_bin_and_no_bin_overflows(lengths, random):
    order = np.array(random.sample(range(len(lengths)), len(lengths)))
    bins = pack_best_fit(lengths, 50, order)
    assert Counter(row for each in bins for row in each) == Counter(range(len(lengths)))
    assert all(lengths[list(each)].sum() <= 50 for each in bins)


@given(lengths_up_to_50, st.randoms(use_true_random=False))
def test_the_number_of_bins_does_not_depend_on_the_order(lengths, random):
    shuffled = np.array(random.sample(range(len(lengths)), len(lengths)))
    assert len(pack_best_fit(lengths, 50, shuffled)) == len(pack_best_fit(lengths, 50, np.arange(len(lengths))))


@given(lengths_up_to_50)
def test_packing_equals_plain_best_fit(lengths):
    """Best fit as the textbook has it: longest first, each into the bin with the least room that is enough."""
    rooms: list[int] = []
    for length in sorted(lengths.tolist(), reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms[rooms.index(min(fitting))] -= length
        else:
            rooms.append(50 - length)
    bins = pack_best_fit(lengths, 50, np.arange(len(lengths)))
    assert sorted(50 - int(lengths[list(each)].sum()) for each in bins) == sorted(rooms)


@given(
    st.lists(st.integers(1, 50), max_size=200).map(lambda each: np.array(each, np.int32)),
    st.integers(50, 70),
    st.randoms(use_true_random=False),
)
def test_rows_of_one_length_placed_together_go_where_each_alone_goes(lengths, capacity, random):
    """The last bin that came to a space is used first, and rows keep the given order: the same packs, row by row."""
    order = random.sample(range(len(lengths)), len(lengths))
    bins, with_space = [], [[] for _ in range(capacity + 1)]
    for row in sorted(order, key=lambda row: -lengths[row]):
        space = next((each for each in range(lengths[row], capacity + 1) if with_space[each]), None)
        if space is None:
            space, number = capacity, len(bins)
            bins.append([])
        else:
            number = with_space[space].pop()
        bins[number].append(row)
        if left := space - lengths[row]:
            with_space[left].append(number)
    packed = pack_best_fit(lengths, capacity, np.array(order, np.int64))
    assert [list(each) for each in packed] == bins


def test_lengths_that_need_more_than_16_bits_are_packed_longest_first():
    lengths = np.array([1, 70_000, 3, 69_999, 2], np.int32)
    assert list(pack_best_fit(lengths, 70_002, np.arange(5))) == [(1, 4), (3, 2), (0,)]
