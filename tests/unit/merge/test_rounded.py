"""Numbers of a merged file against what they were before they were rounded."""

from __future__ import annotations

import pytest
import torch

from ascendtune.merge.rounded import _is_rounded

# The second has blocks of 49 rows: they begin at numbers that an integer of 4 or 8 bytes does not divide.
_SHAPES = [(100, 4096), (173, 5243), (7,), (0, 4)]


@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize(
    ("rounded", "stored"),
    [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16), (torch.bfloat16, torch.float32)],
)
def test_rounded_numbers_are_taken_for_rounded(
    shape: tuple[int, ...], rounded: torch.dtype, stored: torch.dtype
) -> None:
    exact = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert _is_rounded(exact.to(rounded).to(stored), exact, rounded)


@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("shape", _SHAPES[:3])
def test_one_other_number_is_found(shape: tuple[int, ...], at: int) -> None:
    exact = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    stored = exact.bfloat16()
    stored.view(-1)[at] += 0.1
    assert not _is_rounded(stored, exact, torch.bfloat16)
