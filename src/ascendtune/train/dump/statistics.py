"""Statistics of tensors, computed on their devices and copied to the host together."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ascendtune.core.records import finite_or_none
from ascendtune.train.dump.checksum import TILE, as_hex, checksum, checksum_of_tile

_MOST_ON_DEVICE = 1 << 24
"""Values processed at a time: limits the memory of intermediate copies."""
_SAMPLES = 16
_PLACES, _STRIDE = 64, 39
"""Positions within a part, and their shift from part to part: the golden section, with which any few consecutive
positions are far apart."""
_CHUNK = 1 << 13
"""Values whose squares BLAS adds up in one call: so few are not divided among threads."""
_OF_THREAD = threading.local()
_READ_BY_NUMPY = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Pending:
    """Statistics of one tensor: on its device, or as plain numbers if the tensor is on the host.

    Attributes:
        numel: number of values of the tensor.
        floats: (4 × parts + samples,) fp64, fp32 if the device has no fp64: for each part smallest and largest finite
            value, sum and sum of squares of the finite values; then the samples.
        integers: (2 × parts + 1,) int64: for each part the numbers of NaN and of infinite values; the checksum.
    """

    numel: int
    floats: torch.Tensor | list[float]
    integers: torch.Tensor | list[int]


def measure(tensor: torch.Tensor, wide: torch.dtype) -> Pending:
    """Start computing the statistics of `tensor`, without waiting for the device.

    Args:
        tensor: of any shape, floating point; not a DTensor.
        wide: dtype of sums: fp64 if the device has it.
    """
    flat = tensor.detach().reshape(-1)
    return _measure_on_host(flat) if flat.is_cpu else _measure_on_device(flat, wide)


def _measure_on_device(flat: torch.Tensor, wide: torch.dtype) -> Pending:
    """Statistics of (values,), floating point."""
    with torch.no_grad(), torch.autocast(flat.device.type, enabled=False):
        floats, integers = [], []
        for part in flat.split(_MOST_ON_DEVICE) if len(flat) else ():
            numbers, counts = _on_device(part if part.dtype == torch.float64 else part.float(), wide)
            floats += numbers
            integers += counts
        integers.append(checksum(flat))
        stacked = torch.stack(floats) if floats else flat.to(wide)
        samples = flat.index_select(0, _positions_on(flat.device, len(flat)))
        return Pending(len(flat), torch.cat([stacked, samples.to(wide)]), torch.stack(integers))


def _measure_on_host(flat: torch.Tensor) -> Pending:
    """Statistics of (values,), floating point. numpy takes a third of torch's time for small tensors."""
    count, is_plain = flat.numel(), flat.dtype in _READ_BY_NUMPY
    array: NDArray[Any] | None = flat.numpy() if is_plain else None
    floats: list[float] = []
    integers: list[int] = []
    digits = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for number, begin in enumerate(range(0, count, TILE)):
            end = begin + TILE
            values: NDArray[Any] = flat[begin:end].float().numpy() if array is None else array[begin:end]
            numbers, counts = _on_host(values)
            floats += numbers
            integers += counts
            digits += checksum_of_tile(values, number)
    at = _positions(count)
    floats += (flat[at].float().numpy() if array is None else array[at]).tolist()
    return Pending(count, floats, [*integers, digits])


def _on_host(values: NDArray[Any]) -> tuple[list[float], list[int]]:
    """Smallest, largest, sum, sum of squares of (values,) float32 or float64, at most TILE; counts of NaN, infinite.

    The caller must ignore overflows and invalid values.
    """
    wide, squares = _wide_buffer()[: len(values)], 0.0
    np.copyto(wide, values)
    for begin in range(0, len(values), _CHUNK):
        chunk = wide[begin : begin + _CHUNK]
        squares += float(chunk.dot(chunk))
    total = float(np.add.reduce(wide))
    if math.isfinite(squares):
        return [float(np.minimum.reduce(values)), float(np.maximum.reduce(values)), total, squares], [0, 0]
    finite = wide[np.isfinite(wide)]
    nan = int(np.isnan(wide).sum())
    counts = [nan, len(wide) - len(finite) - nan]
    numbers = [finite.min(initial=math.inf), finite.max(initial=-math.inf), finite.sum(), finite.dot(finite)]
    return [float(each) for each in numbers], counts


def _on_device(values: torch.Tensor, wide: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Smallest, largest, sum, sum of squares; numbers of NaN and infinite. Does not wait for the device."""
    finite = values.nan_to_num(0.0, 0.0, 0.0).to(wide)
    low = values.nan_to_num(math.inf, math.inf, math.inf).amin().to(wide)
    high = values.nan_to_num(-math.inf, -math.inf, -math.inf).amax().to(wide)
    return [low, high, finite.sum(), finite.dot(finite)], [values.isnan().sum(), values.isinf().sum()]


def _wide_buffer() -> NDArray[np.float64]:
    """This thread's buffer, (TILE,) float64: allocating memory for each tile would take longer than its sums."""
    buffer: NDArray[np.float64] | None = getattr(_OF_THREAD, "wide", None)
    if buffer is None:
        buffer = _OF_THREAD.wide = np.empty(TILE)
    return buffer


@lru_cache(maxsize=1024)
def _positions(values: int) -> NDArray[np.int64]:
    """Positions of samples, (samples,) int64: one in each of at most 16 equal parts, at different places in them.

    If all were at the beginning of a part, they would be in few columns, and in few tokens of each row. Cached, since
    there are few different sizes.
    """
    count = min(_SAMPLES, values)
    places = (at * _PLACES + at * _STRIDE % _PLACES for at in range(count))
    return np.array([place * values // (count * _PLACES) for place in places], dtype=np.int64)


@lru_cache(maxsize=1024)
def _positions_on(device: torch.device, values: int) -> torch.Tensor:
    """`_positions` on `device`."""
    return torch.from_numpy(_positions(values)).to(device)


def read(pending: list[Pending]) -> list[dict[str, Any]]:
    """The statistics in the form of a dump, in the same order; one transfer for each device and kind of number."""
    floats, integers = ([getattr(each, name) for each in pending] for name in ("floats", "integers"))
    return [
        _statistics(each.numel, numbers, counts)
        for each, numbers, counts in zip(pending, _to_host(floats), _to_host(integers), strict=True)
    ]


def _to_host(tensors: list[torch.Tensor | list[Any]]) -> list[list[Any]]:
    lists: list[list[Any]] = [each if isinstance(each, list) else [] for each in tensors]
    on_devices = [(at, each) for at, each in enumerate(tensors) if isinstance(each, torch.Tensor)]
    for device in {each.device for _, each in on_devices}:
        on_device = [(at, each) for at, each in on_devices if each.device == device]
        values = iter(torch.cat([each for _, each in on_device]).tolist())
        for at, each in on_device:
            lists[at] = list(islice(values, len(each)))
    return lists


def _statistics(numel: int, floats: list[float], integers: list[int]) -> dict[str, Any]:
    *counts, digits = integers
    parts = len(counts) // 2
    nan, inf = sum(counts[0::2]), sum(counts[1::2])
    numbers, samples = floats[: 4 * parts], floats[4 * parts :]
    finite = numel - nan - inf
    lowest = highest = mean = l2 = math.nan
    if finite:
        lowest, highest = min(numbers[0::4]), max(numbers[1::4])
        mean, l2 = math.fsum(numbers[2::4]) / finite, math.sqrt(math.fsum(numbers[3::4]))
    return {
        "min": finite_or_none(lowest),
        "max": finite_or_none(highest),
        "mean": finite_or_none(mean),
        "l2": finite_or_none(l2),
        "nan": nan,
        "inf": inf,
        "hash": as_hex(digits),
        "samples": samples if math.isfinite(sum(samples)) else [finite_or_none(each) for each in samples],
    }
