"""Sizes and bandwidths as nccl-tests defines them (doc/PERFORMANCE.md there)."""

from __future__ import annotations

import pytest

from ascendtune.check.comm.call import PREPARE
from ascendtune.check.comm.collective import COLLECTIVES


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("all_reduce", (1.0, 1.5, 1.75)),
        ("all_gather", (0.5, 0.75, 0.875)),
        ("reduce_scatter", (0.5, 0.75, 0.875)),
        ("all_to_all", (0.5, 0.75, 0.875)),
        ("broadcast", (1.0, 1.0, 1.0)),
        ("send_recv", (1.0, 1.0, 1.0)),
    ],
)
def test_bus_bandwidth_has_the_factor_of_nccl_tests(name: str, factors: tuple[float, ...]) -> None:
    # One GB in a second.
    found = [COLLECTIVES[name].bandwidths(10**9, 1.0, ranks) for ranks in (2, 4, 8)]
    assert found == [(1e9, factor * 1e9) for factor in factors]


def test_bus_bandwidth_equals_a_published_figure() -> None:
    """1 GiB in 10,442 us is 102.8 GB/s; GB are 10^9 bytes."""
    algorithm, bus = COLLECTIVES["all_reduce"].bandwidths(1 << 30, 10442e-6, 128)
    assert round(algorithm / 1e9, 1) == 102.8 and round(bus / 1e9, 1) == 204.1


@pytest.mark.parametrize(
    ("name", "size", "count", "real"),
    [
        ("all_reduce", 1024, 256, 1024),
        ("all_gather", 1024, 32, 1024),
        ("all_to_all", 1000, 31, 992),
        ("reduce_scatter", 8, 1, 32),
        ("broadcast", 2, 1, 4),
    ],
)
def test_count_is_one_ranks_part(name: str, size: int, count: int, real: int) -> None:
    collective = COLLECTIVES[name]
    assert collective.count(size, itemsize=4, ranks=8) == count
    assert collective.size_bytes(count, itemsize=4, ranks=8) == real


def test_every_collective_can_be_called() -> None:
    assert PREPARE.keys() == COLLECTIVES.keys()


@pytest.mark.parametrize(
    ("name", "first", "last", "sizes"),
    [
        ("all_reduce", 3, 10, [4, 8]),
        ("all_reduce", 8, 64, [8, 16, 32, 64]),
        ("all_gather", 8, 100, [16, 32, 64]),
        ("all_reduce", 5, 10, [4, 8]),
    ],
)
def test_sizes_begin_with_whole_elements_and_double(name: str, first: int, last: int, sizes: list[int]) -> None:
    assert [size for _, size in COLLECTIVES[name].sizes(4, 4, first, last)] == sizes
