"""A low-rank product added block by block, against PEFT's way: the whole product, scaled, added and rounded once."""

from __future__ import annotations

import pytest
import torch

from ascendtune.merge.arithmetic import _BLOCK, _accumulate_product

# One block, several with a rest of one row, rows longer than a block, a single row.
_SHAPES = [(7, 5), (1 + _BLOCK // 1001, 1001), (515, 2048), (5, _BLOCK + 3), (1, 4096)]


@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize("rank", [1, 2, 16, 100, 300])
@pytest.mark.parametrize("scaling", [1.0, 2.0, -0.25, 0.0, 4 / 3**0.5])
def test_bits_are_those_of_the_whole_product(shape: tuple[int, int], rank: int, scaling: float) -> None:
    generator = torch.Generator().manual_seed(rank)
    b = torch.randn(shape[0], rank, generator=generator)
    a = 0.01 * torch.randn(rank, shape[1], generator=generator)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        weight = torch.randn(shape, generator=generator).to(dtype)
        expected = (weight.to(torch.promote_types(dtype, b.dtype)) + b @ a * scaling).to(dtype)
        _accumulate_product(weight, b, a, scaling)
        assert torch.equal(weight, expected)
