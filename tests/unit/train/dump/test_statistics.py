"""Statistics of a dump against numpy in fp64, and checksums that depend on values alone."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from ascendtune.train.dump import statistics
from ascendtune.train.dump.checksum import as_hex, checksum, row_checksums
from ascendtune.train.dump.statistics import measure, read


def statistics_of(tensor: torch.Tensor) -> dict[str, object]:
    return read([measure(tensor, torch.float64)])[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,), (7, 33), (3, 300, 100)])
def test_statistics_equal_those_of_numpy(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1)).mul(3).add(0.5).to(dtype)
    values = tensor.double().numpy().reshape(-1)
    found = statistics_of(tensor)
    assert (found["min"], found["max"]) == (values.min(), values.max())
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-12)
    assert found["l2"] == pytest.approx(np.sqrt((values**2).sum()), rel=1e-12)
    assert (found["nan"], found["inf"]) == (0, 0)
    count = min(16, len(values))
    assert found["samples"] == [values[int((at + at * 39 % 64 / 64) * len(values) / count)] for at in range(count)]


def test_samples_of_wider_vectors_lie_in_the_same_vectors() -> None:
    vectors = torch.arange(80.0)
    places = [statistics_of(vectors.repeat_interleave(width))["samples"] for width in (1, 3, 64, 96)]
    assert places == [places[0]] * 4


def test_samples_lie_in_many_columns_and_in_early_and_late_tokens_of_rows() -> None:
    rows, tokens, width = 4, 16, 64
    flat = torch.arange(float(rows * tokens * width))
    samples = [int(each) for each in statistics_of(flat)["samples"]]
    assert len({each % width for each in samples}) >= 4
    assert len({each // width % tokens for each in samples}) >= 12


def test_statistics_are_of_finite_values_and_others_are_counted() -> None:
    tensor = torch.tensor([[1.0, math.nan, -3.0], [math.inf, -math.inf, math.nan]])
    found = statistics_of(tensor)
    assert (found["nan"], found["inf"]) == (2, 2)
    assert (found["min"], found["max"], found["mean"]) == (-3.0, 1.0, -1.0)
    assert found["l2"] == pytest.approx(math.sqrt(10))
    assert found["samples"] == [1.0, None, -3.0, None, None, None]


def test_tensor_without_finite_value_has_no_range() -> None:
    found = statistics_of(torch.full((3,), math.nan))
    assert [found[key] for key in ("min", "max", "mean", "l2", "nan")] == [None, None, None, None, 3]
    empty = statistics_of(torch.empty(0, 4))
    assert empty["samples"] == [] and empty["min"] is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tiles_of_a_large_tensor_add_up(dtype: torch.dtype) -> None:
    tensor = torch.randn(3, (1 << 16) + 77, generator=torch.Generator().manual_seed(2)).to(dtype)
    tensor[1, 70] = math.nan
    found = statistics_of(tensor)
    values = tensor.double().numpy().reshape(-1)
    assert (found["min"], found["max"]) == (np.nanmin(values), np.nanmax(values))
    assert found["mean"] == pytest.approx(np.nanmean(values), rel=1e-9)
    assert found["l2"] == pytest.approx(np.sqrt(np.nansum(values**2)), rel=1e-12)
    assert (found["nan"], found["inf"]) == (1, 0)
    assert found["hash"] == as_hex(int(checksum(tensor)))


def test_finite_values_whose_squares_overflow_are_not_counted_as_infinite() -> None:
    found = statistics_of(torch.tensor([1e300, -2.0], dtype=torch.float64))
    assert (found["min"], found["max"], found["nan"], found["inf"]) == (-2.0, 1e300, 0, 0)


@pytest.mark.parametrize("values", [[1.5, -2.0, 4.0], [math.nan, -1.0, 5.0], [math.inf, math.nan], [-math.inf, 3.0]])
def test_device_and_host_agree(values: list[float]) -> None:
    tensor = torch.tensor(values)
    on_device = statistics._on_device(tensor, torch.float64)
    on_host = statistics._on_host(tensor.numpy())
    assert [list(map(float, each)) for each in on_device] == [list(map(float, each)) for each in on_host]


def test_strided_tensor_is_measured_in_its_logical_order() -> None:
    tensor = torch.randn(5, 8)
    assert statistics_of(tensor.t()) == statistics_of(tensor.t().contiguous())


def test_statistics_inside_autocast_are_the_same() -> None:
    tensor = torch.randn(100, 100).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        inside = statistics_of(tensor)
    assert inside == statistics_of(tensor)


def test_several_tensors_are_read_in_their_order() -> None:
    tensors = [torch.full((number + 1,), float(number)) for number in range(5)]
    found = read([measure(each, torch.float64) for each in tensors])
    assert [each["max"] for each in found] == [0, 1, 2, 3, 4]
    assert [len(each["samples"]) for each in found] == [1, 2, 3, 4, 5]


def by_definition(values: torch.Tensor) -> int:
    """The formula of the module, one value at a time, in Python's integers."""
    mask = (1 << 64) - 1

    def random_number(index: int) -> int:
        z = (index + 1) * 0x9E3779B97F4A7C15 & mask
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return (z ^ z >> 31) | 1

    tile = 1 << 16
    bits = values.reshape(-1).view(torch.int32).tolist()
    return sum(b * random_number(i % tile) * random_number(tile + i // tile) for i, b in enumerate(bits)) & mask


@pytest.mark.parametrize("count", [0, 1, 1000, (1 << 16) + 5, 3 * (1 << 16)])
def test_checksum_follows_its_definition(count: int) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(count))
    assert as_hex(int(checksum(values))) == f"{by_definition(values):016x}"


def test_checksums_of_rows_follow_their_definition() -> None:
    ids = torch.randint(0, 200_000, (3, (1 << 16) + 5), generator=torch.Generator().manual_seed(1))
    expected = [f"{by_definition(row.int()):016x}" for row in ids]
    assert [as_hex(each) for each in row_checksums(ids).tolist()] == expected


def test_checksum_does_not_depend_on_shape_and_storage_type() -> None:
    values = torch.randn(1000).bfloat16()
    expected = int(checksum(values))
    assert int(checksum(values.float())) == int(checksum(values.view(10, 100))) == expected


@pytest.mark.parametrize("cuts", [(1,), (70_000,), (65_536, 131_072), (3, 65_530, 150_000)])
def test_checksums_of_parts_add_up_to_that_of_the_whole(cuts: tuple[int, ...]) -> None:
    values = torch.randn(200_000)
    places = [0, *cuts, len(values)]
    parts = [checksum(values[begin:end], offset=begin) for begin, end in pairwise(places)]
    assert int(torch.stack(parts).sum()) == int(checksum(values))


def test_one_changed_bit_or_two_swapped_values_change_the_checksum() -> None:
    values = torch.randn(70_000)
    before = int(checksum(values))
    for at in (0, 12_345, 69_999):
        for bit in (0, 22, 30):
            changed = values.clone()
            changed.view(torch.int32)[at] ^= 1 << bit
            assert int(checksum(changed)) != before
    swapped = values.clone()
    swapped[[7, 65_543]] = values[[65_543, 7]]
    assert int(checksum(swapped)) != before
