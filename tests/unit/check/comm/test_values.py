"""Sent values identify rank and position, and are exact in every dtype; any other value is detected."""

from __future__ import annotations

import pytest
import torch

from ascendtune.check.comm.call import PERIOD, BufferPart, compare, contribution, fill, total
from ascendtune.check.comm.collective import LARGEST_EXACT, modulus

COUNT = 2 * PERIOD + 5


def test_eight_ranks_give_36() -> None:
    for dtype in ("float32", "bfloat16", "int8"):
        fits = modulus(dtype, 8)
        assert fits is not None and int(total(range(8), fits)[0]) == 36
        assert [int(contribution(rank, fits)[0]) for rank in range(8)] == list(range(1, 9))


@pytest.mark.parametrize("ranks", [2, 8, 16])
@pytest.mark.parametrize("dtype", LARGEST_EXACT)
def test_sums_are_exact(dtype: str, ranks: int) -> None:
    fits = modulus(dtype, ranks)
    if fits is None:
        assert LARGEST_EXACT[dtype] < 2 * ranks
        return
    exact = total(range(ranks), fits)
    assert int(exact.max()) <= LARGEST_EXACT[dtype]
    if not dtype.startswith("uint") and getattr(torch, dtype).itemsize > 1:
        parts = [contribution(rank, fits).to(getattr(torch, dtype)) for rank in range(ranks)]
        assert torch.equal(torch.stack(parts).sum(0).real.to(torch.int64), exact)


def test_ranks_and_places_differ() -> None:
    first, second = contribution(0, 251), contribution(1, 251)
    assert 200 < len(set(first.tolist())) <= 251 and int(first.min()) >= 1 and int(first.max()) <= 251
    for other in (second, torch.roll(first, 1), torch.roll(first, 64)):
        assert int((first == other).sum()) < PERIOD // 50
    # Two values only: half of the places are alike, and half are not.
    assert int((contribution(0, 2) == contribution(2, 2)).sum()) < 0.6 * PERIOD


@pytest.mark.parametrize("dtype", LARGEST_EXACT)
def test_one_wrong_bit_is_found(dtype: str) -> None:
    fits = modulus(dtype, 1)
    assert fits is not None
    part = BufferPart(contribution(3, fits), start=4, count=COUNT, offset=7, source=3)
    buffer = torch.zeros(COUNT + 8, dtype=getattr(torch, dtype))
    fill(buffer, part)
    right = compare(buffer, part, shown=2)
    assert right["wrong"] == 0 and right["seen"] == right["expected"] and len(right["seen"]) == 2
    buffer.view(torch.uint8)[(4 + PERIOD) * buffer.element_size()] ^= 1
    found = compare(buffer, part, shown=0)
    assert found["wrong"] == 1 and found["first_wrong"]["element"] == PERIOD
    assert found["first_wrong"]["seen"] != found["first_wrong"]["expected"]


def test_a_buffer_that_never_arrived_is_wrong() -> None:
    part = BufferPart(contribution(0, 251), start=0, count=1000)
    assert compare(torch.zeros(1000), part, shown=1)["wrong"] == 1000
    assert compare(torch.full((1000,), float("nan")), part, shown=1)["seen"] == ["nan"]


def test_parts_lie_one_behind_the_other() -> None:
    whole, halves = torch.zeros(2 * PERIOD), torch.zeros(2 * PERIOD)
    values = contribution(1, 251)
    fill(whole, BufferPart(values, 0, 2 * PERIOD))
    for start in (0, 1234):
        fill(halves, BufferPart(values, start, 2 * PERIOD - start, offset=start))
    assert torch.equal(whole, halves)
