"""Statistics of tensors, computed on their devices and brought to the host together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import torch

from ascendtune.train.dump.checksum import as_hex, checksum

_MOST_ON_DEVICE = 1 << 24
"""Values that are looked at together: bounds what the intermediate copies take."""
_MOST_ON_HOST = 1 << 18
"""There they stay in the cache."""
_SAMPLES = 16


@dataclass(frozen=True)
class Pending:
    """Statistics of one tensor, still on its device.

    Attributes:
        numel: how many values the tensor has.
        floats: (4 × parts + samples,) fp64, fp32 where the device has no fp64: smallest and largest finite value, sum
            and sum of squares of the finite values, for each part; then the samples.
        integers: (2 × parts + 1,) int64: how many values are NaN and how many infinite, for each part; the checksum.
    """

    numel: int
    floats: torch.Tensor
    integers: torch.Tensor


@torch.no_grad()
def measure(tensor: torch.Tensor, wide: torch.dtype) -> Pending:
    """Start computing the statistics of `tensor`; nothing waits for the device.

    Args:
        tensor: of any shape, floating point; not a DTensor.
        wide: the type of sums: fp64 where the device has it.
    """
    with torch.autocast(tensor.device.type, enabled=False):
        flat = tensor.detach().reshape(-1)
        of_part = _on_host if flat.is_cpu else _on_device
        floats, integers = [], []
        for part in flat.split(_MOST_ON_HOST if flat.is_cpu else _MOST_ON_DEVICE) if len(flat) else ():
            numbers, counts = of_part(part if part.dtype == torch.float64 else part.float(), wide)
            floats += numbers
            integers += counts
        integers.append(checksum(flat))
        stacked = torch.stack(floats) if floats else flat.to(wide)
        return Pending(len(flat), torch.cat([stacked, _samples(flat).to(wide)]), torch.stack(integers))


def _on_device(values: torch.Tensor, wide: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Smallest, largest, sum, sum of squares; NaN and infinite. Nothing is read, so nothing waits for the device."""
    finite = values.nan_to_num(0.0, 0.0, 0.0).to(wide)
    low = values.nan_to_num(math.inf, math.inf, math.inf).amin().to(wide)
    high = values.nan_to_num(-math.inf, -math.inf, -math.inf).amax().to(wide)
    return [low, high, finite.sum(), finite.dot(finite)], [values.isnan().sum(), values.isinf().sum()]


def _on_host(values: torch.Tensor, wide: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The same as `_on_device`, three times as fast where values can be read at once."""
    low, high = values.aminmax()
    counts = [torch.zeros((), dtype=torch.int64)] * 2
    if not math.isfinite(low) or not math.isfinite(high):
        counts = [values.isnan().sum(), values.isinf().sum()]
        values = values[values.isfinite()]
        low, high = values.aminmax() if len(values) else values.new_tensor([math.inf, -math.inf]).unbind()
    finite = values.to(wide)
    return [low.to(wide), high.to(wide), finite.sum(), finite.dot(finite)], counts


def _samples(flat: torch.Tensor) -> torch.Tensor:
    """(samples,) of (values,): those at i·values//samples, at most 16."""
    return flat.index_select(0, _positions(flat.numel(), flat.device))


@lru_cache(maxsize=1024)
def _positions(values: int, device: torch.device) -> torch.Tensor:
    """(samples,) int64: kept, since few sizes occur and making it takes as long as measuring a small tensor."""
    count = min(_SAMPLES, values)
    return torch.tensor([at * values // count for at in range(count)], dtype=torch.int64).to(device)


def read(pending: list[Pending]) -> list[dict[str, Any]]:
    """The statistics as they stand in a dump, in the same order: one transfer for each device and kind of number."""
    floats, integers = ([getattr(each, name) for each in pending] for name in ("floats", "integers"))
    return [
        _statistics(each.numel, numbers, counts)
        for each, numbers, counts in zip(pending, _to_host(floats), _to_host(integers), strict=True)
    ]


def _to_host(tensors: list[torch.Tensor]) -> list[list[Any]]:
    found: list[list[Any]] = [[] for _ in tensors]
    for device in {each.device for each in tensors}:
        places = [at for at, each in enumerate(tensors) if each.device == device]
        values = iter(torch.cat([tensors[at] for at in places]).tolist())
        for at in places:
            found[at] = list(islice(values, len(tensors[at])))
    return found


def _statistics(numel: int, floats: list[float], integers: list[int]) -> dict[str, Any]:
    *counts, digits = integers
    parts = len(counts) // 2
    nan, inf = sum(counts[0::2]), sum(counts[1::2])
    numbers, samples = floats[: 4 * parts], floats[4 * parts :]
    finite = numel - nan - inf
    known: dict[str, float | None] = {"min": None, "max": None, "mean": None, "l2": None}
    if finite:
        known = {
            "min": min(numbers[0::4]),
            "max": max(numbers[1::4]),
            "mean": math.fsum(numbers[2::4]) / finite,
            "l2": math.sqrt(math.fsum(numbers[3::4])),
        }
    return {
        **{name: _finite(value) for name, value in known.items()},
        "nan": nan,
        "inf": inf,
        "hash": as_hex(digits),
        "samples": [_finite(each) for each in samples],
    }


def _finite(value: float | None) -> float | None:
    """JSON cannot express NaN and infinities: they become None."""
    return value if value is not None and math.isfinite(value) else None
