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
    assert all(lengths[each].sum() <= 50 for each in bins)


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
    assert sorted(50 - int(lengths[each].sum()) for each in bins) == sorted(rooms)
