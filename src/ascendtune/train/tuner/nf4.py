"""NF4: one of sixteen levels for each weight, a scale for 64 weights (Dettmers et al. 2023, QLoRA, arXiv 2305.14314).

The sixteen levels are quantiles of a normal distribution (appendix E). With double quantisation the scales themselves
are bytes: 4.5 bits a weight become 4.13 (section 3). The layout of the bytes is that of bitsandbytes; they are computed
by plain torch, so every device of torch is supported.

All tensors of a quantised weight are bytes, also the scales: casting a model to another dtype does not change them.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch

BLOCK = 64
"""Number of weights that share a scale."""
_OUTER_BLOCK = 256
"""Number of scales that share a scale, with double quantisation."""
LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_AT_ONCE = 1 << 24
"""Number of weights converted at a time: temporary tensors take a few times their memory."""
_IN_CACHE = 1 << 18
"""As many fit into a core's cache with the temporary tensors: four times as fast as all at once."""


class Nf4(NamedTuple):
    """A quantised matrix."""

    packed: torch.Tensor
    """(ceil(numbers / 2),) uint8: the first of two numbers is in the upper half."""
    scales: torch.Tensor
    """uint8: (blocks × 4,), the bytes of fp32 scales; with double quantisation (blocks,), their levels."""
    outer: torch.Tensor | None
    """With double quantisation: bytes of fp32 numbers, first the scales' mean, then a scale for 256 levels each."""
    shape: tuple[int, ...]
    """Shape of the matrix."""


def quantise(weight: torch.Tensor, *, double: bool) -> Nf4:
    """Round `weight`, any shape and floating dtype, to the nearest levels, on its device."""
    at_once = _IN_CACHE if weight.device.type == "cpu" else _AT_ONCE
    parts = [_quantise_blocks(part) for part in weight.detach().reshape(-1).split(at_once)]
    packed, scales = (torch.cat(each) for each in zip(*parts, strict=True))
    if not double:
        return Nf4(packed, scales.view(torch.uint8), None, tuple(weight.shape))
    # On the host: there are few, and some devices lack searchsorted.
    levels, outer = _quantise_scales(scales.cpu())
    return Nf4(packed, levels.to(packed.device), outer.to(packed.device), tuple(weight.shape))


def dequantise(weight: Nf4, dtype: torch.dtype) -> torch.Tensor:
    """The matrix, in its original shape such as (outputs, inputs): level times scale in fp32, rounded to `dtype`."""
    size, device = math.prod(weight.shape), weight.packed.device
    blocks = math.ceil(size / BLOCK)
    matrix = torch.empty(blocks, BLOCK, dtype=dtype, device=device)
    pairs, scales = _pairs_of_levels(device, _mode_of(weight.packed)), _scales(weight)
    at_once = _IN_CACHE if device.type == "cpu" else _AT_ONCE
    for part, packed, scale in zip(
        matrix.split(at_once // BLOCK), weight.packed.split(at_once // 2), scales.split(at_once // BLOCK), strict=True
    ):
        # One look-up returns two numbers.
        numbers = pairs.index_select(0, packed.int()).view(torch.float32)
        if len(numbers) < part.numel():
            numbers = torch.nn.functional.pad(numbers, (0, part.numel() - len(numbers)))
        torch.mul(numbers.view(-1, BLOCK), scale[:, None], out=part)
    return matrix.view(-1)[:size].view(weight.shape)


def without_content(shape: tuple[int, ...], *, double: bool) -> Nf4:
    """A quantised matrix of this shape on the meta device."""
    numbers = math.prod(shape)
    blocks = math.ceil(numbers / BLOCK)
    sizes = math.ceil(numbers / 2), blocks if double else 4 * blocks, 4 * (1 + math.ceil(blocks / _OUTER_BLOCK))
    packed, scales, outer = (torch.empty(size, dtype=torch.uint8, device="meta") for size in sizes)
    return Nf4(packed, scales, outer if double else None, shape)


def bytes_of(numbers: int, *, double: bool) -> int:
    """Bytes of a quantised matrix with this number of weights."""
    return sum(0 if each is None else each.nbytes for each in without_content((numbers,), double=double)[:3])


def _quantise_blocks(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(ceil(numbers / 2),) packed levels, and (ceil(numbers / 64),) fp32 scales: the largest magnitudes."""
    size = numbers.numel()
    padded = torch.nn.functional.pad(numbers.float(), (0, -size % BLOCK)).view(-1, BLOCK)
    scales = padded.abs().amax(1)
    # A block of zeros has no scale to divide by; its weights have the level 0.0, which is not the first one.
    scaled = padded * torch.where(scales > 0, scales, 1.0).reciprocal()[:, None]
    levels = torch.zeros_like(scaled, dtype=torch.uint8)
    for lower, upper in pairwise(LEVELS):
        levels += scaled > (lower + upper) / 2
    levels = levels.view(-1)[: size + size % 2]
    return levels[0::2] * 16 + levels[1::2], scales


def _quantise_scales(scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`Nf4.scales` and `Nf4.outer` of (blocks,) fp32 scales."""
    mean = scales.mean()
    centred = scales - mean
    padded = torch.nn.functional.pad(centred, (0, -len(centred) % _OUTER_BLOCK)).view(-1, _OUTER_BLOCK)
    largest = padded.abs().amax(1)
    scaled = padded * torch.where(largest > 0, largest, 1.0).reciprocal()[:, None]
    table = _levels_of_scales(centred.device, None)
    upper = torch.searchsorted(table, scaled.contiguous()).clamp_(1, len(table) - 1)
    levels = upper - (scaled - table[upper - 1] < table[upper] - scaled).long()
    return levels.view(-1)[: len(centred)].to(torch.uint8), torch.cat([mean.view(1), largest]).view(torch.uint8)


def _scales(weight: Nf4) -> torch.Tensor:
    """The scales of all blocks: (blocks,) fp32."""
    if weight.outer is None:
        return weight.scales.view(torch.float32)
    outer = weight.outer.view(torch.float32)
    levels = _levels_of_scales(weight.scales.device, _mode_of(weight.scales)).index_select(0, weight.scales.int())
    return levels * outer[1:].repeat_interleave(_OUTER_BLOCK)[: len(levels)] + outer[0]


def _mode_of(tensor: torch.Tensor) -> object:
    """The FakeTensorMode of a traced tensor, for the caches below: fake tensors of two modes must not be mixed."""
    return getattr(tensor, "fake_mode", None)


@cache
def _pairs_of_levels(device: torch.device, mode: object) -> torch.Tensor:
    """(256,) int64: for each byte, the bytes of its two fp32 levels."""
    levels = torch.tensor(LEVELS, device=device)
    return torch.stack([levels.repeat_interleave(16), levels.repeat(16)], dim=1).view(torch.int64).view(-1)


@cache
def _levels_of_scales(device: torch.device, mode: object) -> torch.Tensor:
    """`_SCALE_LEVELS` as a tensor: (256,) fp32, ascending."""
    return torch.tensor(_SCALE_LEVELS, device=device)


def _dynamic_type() -> list[float]:
    """The 256 values of the dynamic 8-bit data type, ascending (Dettmers 2016, arXiv 1511.04561, section 2.2).

    Each decade has half as many levels as the one above it, at equal distances; seven decades, both signs, 0 and 1.
    """
    levels = [0.0, 1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1.0, 2**decade + 1)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade - 6)
        levels += [*middles.tolist(), *(-middles).tolist()]
    return sorted(levels)


_SCALE_LEVELS = _dynamic_type()
