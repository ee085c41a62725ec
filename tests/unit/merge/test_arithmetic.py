"""A low-rank product added block by block: as near to the exact sum as PEFT's way, which adds the whole product.

Their bits are not the same on every processor: a library of products sums small shapes, and blocks, in other orders.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ascendtune.hub.peft_adapter import Adapter, LowRank
from ascendtune.hub.safetensors_header import read_safetensors_header
from ascendtune.merge import arithmetic
from ascendtune.merge.arithmetic import Merger, _accumulate_product
from ascendtune.merge.merge_plan import Addition, Output

_RANKS = [1, 2, 16, 100, 300]
_SCALINGS = [1.0, 2.0, -0.25, 0.0, 4 / 3**0.5]
_SMALL_BLOCK = 1 << 14


# One block, several with a rest of one row, several with a rest of three, a single row.
@pytest.mark.parametrize("shape", [(7, 5), (1 + _SMALL_BLOCK // 1001, 1001), (131, 512), (1, 4096)])
@pytest.mark.parametrize("rank", _RANKS)
@pytest.mark.parametrize("scaling", _SCALINGS)
def test_sum_is_exact_up_to_rounding(
    shape: tuple[int, int], rank: int, scaling: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arithmetic, "_BLOCK", _SMALL_BLOCK)
    _assert_exact_up_to_rounding(shape, rank, scaling)


@pytest.mark.parametrize(
    ("rank", "block"), [(1, _SMALL_BLOCK), (16, _SMALL_BLOCK), (16, arithmetic._BLOCK), (300, _SMALL_BLOCK)]
)
def test_sum_of_rows_longer_than_a_block_is_exact_up_to_rounding(
    rank: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arithmetic, "_BLOCK", block)
    _assert_exact_up_to_rounding((5, block + 3), rank, _SCALINGS[-1])


def _assert_exact_up_to_rounding(shape: tuple[int, int], rank: int, scaling: float) -> None:
    generator = torch.Generator().manual_seed(rank)
    b = torch.randn(shape[0], rank, generator=generator)
    a = 0.01 * torch.randn(rank, shape[1], generator=generator)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        weight = torch.randn(shape, generator=generator).to(dtype)
        exact = weight.double() + scaling * (b.double() @ a.double())
        # Higham 2002, section 3.5: what a product of inner dimension n may lose, in whichever order it is summed; one
        # rounding more for the scale, one for the sum.
        unit = torch.finfo(torch.float32).eps
        lost = unit * ((rank + 1) * abs(scaling) * (b.double().abs() @ a.double().abs()) + exact.abs())
        # PEFT's way has to keep within the same.
        theirs = (weight.to(torch.promote_types(dtype, b.dtype)) + b @ a * scaling).to(dtype)
        _accumulate_product(weight, b, a, scaling)
        kind = torch.finfo(dtype)
        rounded = kind.eps / 2 * torch.clamp(exact.abs() + lost, min=kind.tiny)
        for found in (weight, theirs):
            assert ((found.double() - exact).abs() <= lost + rounded).all()


def test_a_weight_without_numbers_stays_one(tmp_path: Path) -> None:
    save_file({"x.weight": torch.empty(4, 0)}, tmp_path / "base.safetensors")
    save_file({"a": torch.ones(2, 0), "b": torch.ones(4, 2)}, tmp_path / "adapter.safetensors")
    base, file = (read_safetensors_header(tmp_path / f"{name}.safetensors") for name in ("base", "adapter"))
    adapter = Adapter(tmp_path, {}, file, 1.0, [LowRank("x", "a", "b", 1.0, (4, 0))], [], [], {})
    output = Output("x.weight", "F32", (4, 0), (base, "x.weight"), (Addition(adapter, adapter.low_rank[0]),))
    assert Merger().compute(output).shape == (4, 0)
