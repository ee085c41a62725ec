"""A checksum of a tensor's values, computed on its device, the same however the tensor is stored or sharded.

For values v_0, v_1, … with the bits b_i of v_i in fp32 (fp64 values: in fp64) it is Σ b_i·t[i mod T]·m[i div T]
mod 2^64, where t and m are odd pseudo-random numbers (splitmix64). Being a sum, it can be computed from parts.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

TILE = 1 << 16
"""Number of values that share a factor."""
_HALF = TILE // 2
"""Number of products that stay in a core's cache: 256 KiB."""
_OF_THREAD = threading.local()
_TILES_AT_ONCE = 16
"""A block of products takes 8 MiB."""


def checksum(tensor: torch.Tensor, offset: int = 0) -> torch.Tensor:
    """() int64 on the device of `tensor`, without a synchronisation.

    Args:
        tensor: of any shape, floating point; not a DTensor.
        offset: position of its first value in the flattened whole, if `tensor` is a part of a larger tensor.
    """
    flat = tensor.detach().reshape(-1)
    tile, factors = _random_numbers(flat.device)
    parts: list[torch.Tensor] = []
    position, end = 0, flat.numel()
    while position < end:
        number, begin = divmod(offset + position, TILE)
        at = number % len(factors)
        tiles = min((end - position) // TILE, _TILES_AT_ONCE, len(factors) - at) if begin == 0 else 0
        length = tiles * TILE or min(TILE - begin, end - position)
        bits = _bits(flat[position : position + length]).view(max(tiles, 1), -1)
        rows = _products(bits, tile[begin : begin + bits.shape[1]])
        parts.append((rows * factors[at : at + len(rows)]).sum())
        position += length
    if not parts:
        return torch.zeros((), dtype=torch.int64, device=flat.device)
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum()


def row_checksums(ids: torch.Tensor) -> torch.Tensor:
    """(rows,) int64 on the device of `ids`: Σ_j ids[i, j]·t[j mod T]·m[j div T] mod 2^64, without a synchronisation.

    Args:
        ids: (rows, tokens) integers. Padding with 0 at the end of a row does not change its checksum.
    """
    tile, factors = _random_numbers(ids.device)
    parts = ids.detach().long().split(TILE, dim=1)
    sums = [(part * tile[: part.shape[1]]).sum(1) * factors[at % len(factors)] for at, part in enumerate(parts)]
    return torch.stack(sums).sum(0)


def token_checksum(ids: torch.Tensor) -> torch.Tensor:
    """() int64 on the device of `ids`: Σ t[id mod T]·m[id div T] mod 2^64, without a synchronisation.

    Args:
        ids: integers of any shape, from 0. Their order does not change the checksum, nor does padding with 0.
    """
    tile, factors = _random_numbers(ids.device)
    flat = ids.detach().long().reshape(-1)
    return (tile[flat % TILE] * factors[flat // TILE % TILE] * (flat != 0)).sum()


def checksum_of_tile(values: NDArray[Any], number: int) -> int:
    """The contribution of a tile to the checksum, mod 2^64.

    Args:
        values: (values,) float32 or float64, contiguous; at most TILE.
        number: number of the tile; all tiles before it are complete.
    """
    tile, factors = _random_numbers_on_host()
    bits: Any = values.view(np.int64 if values.dtype == np.float64 else np.int32)
    buffer, total = _product_buffer(), 0
    for begin in range(0, len(bits), _HALF):
        # numpy multiplies 64-bit integers by vector instructions if both operands have 64 bits.
        products = buffer[: min(_HALF, len(bits) - begin)]
        end = begin + len(products)
        np.copyto(products, bits[begin:end])
        np.multiply(products, tile[begin:end], out=products)
        total += int(np.add.reduce(products))
    return total * int(factors[number % len(factors)])


def _products(bits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """(rows,) int64: Σ_j bits[i, j]·numbers[j] mod 2^64, of (rows, n) int32 or int64 and (n,) int64."""
    if bits.is_cpu:
        # numpy 2.4 takes a tenth of torch's time (2.13).
        return torch.from_numpy(np.einsum("ij,j->i", bits.numpy(), numbers.numpy()))
    return (bits * numbers).sum(1)


def _product_buffer() -> NDArray[np.int64]:
    """This thread's buffer: (_HALF,) int64."""
    buffer: NDArray[np.int64] | None = getattr(_OF_THREAD, "products", None)
    if buffer is None:
        buffer = _OF_THREAD.products = np.empty(_HALF, dtype=np.int64)
    return buffer


def as_hex(value: int) -> str:
    """A checksum as 16 hexadecimal digits."""
    return f"{value % (1 << 64):016x}"


def _bits(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(torch.int64) if flat.dtype == torch.float64 else flat.float().view(torch.int32)


@lru_cache(maxsize=16)
def _random_numbers(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The odd factors of positions in a tile, and of tiles: (65536,) int64 each."""
    first, second = (torch.from_numpy(each).to(device) for each in _random_numbers_on_host())
    return first, second


@lru_cache(maxsize=1)
def _random_numbers_on_host() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    numbers = (_splitmix64(2 * TILE) | np.uint64(1)).view(np.int64)
    return numbers[:TILE], numbers[TILE:]


def _splitmix64(count: int) -> NDArray[np.uint64]:
    """(count,) uint64: SplitMix64 (Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators)."""
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
