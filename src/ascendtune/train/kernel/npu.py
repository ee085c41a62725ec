"""Ascend's fused operators, according to the torch_npu documentation.

All inputs and results: as in `FusableNorm`, `FusableRotary`, `FusableMlp` and `FusableExperts`, that is hidden
(…, width), query (batch, heads, tokens, width), gate (…, width), rows (rows, in).
"""

from __future__ import annotations

from typing import Any

import torch
import torch_npu
from torch.nn.functional import silu


def npu_rms_norm(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    output: torch.Tensor = torch_npu.npu_rms_norm(hidden, weight, epsilon)[0]
    return output


def npu_rotary_mul(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return (
        torch_npu.npu_rotary_mul(query.contiguous(), cos, sin, rotary_mode="half"),
        torch_npu.npu_rotary_mul(key.contiguous(), cos, sin, rotary_mode="half"),
    )


def npu_swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    # torch_npu's page excludes empty tensors. Experts that are separate modules get them if they have no token.
    if not gate.numel():
        return silu(gate) * up
    output: torch.Tensor = torch_npu.npu_swiglu(torch.cat((gate, up), dim=-1), dim=-1)
    return output


def npu_grouped_matmul(rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = _GroupedMatmul.apply(rows, weight, counts)  # type: ignore[no-untyped-call]
    return output


class _GroupedMatmul(torch.autograd.Function):
    """torch_npu.npu_grouped_matmul with a derivative: that of torch_npu 2.13 silently returns no gradient.

    According to CANN's page on aclnnGroupedMatmulV5 (ops-transformer, gmm/grouped_matmul/docs), for Atlas A2 and A3: x,
    weight and y are all fp32, fp16 or bf16; their last dimensions are below 65536; `group_list` is int64, on the
    device, with at most 1024 groups; torch_npu's page adds that a single count is refused. Group type 0 divides the
    rows of x between the matrices of weight, which may be a transposed view. Group type 2 divides the sum over the
    rows: x must be a transposed view and weight must not, and y is (groups, …).
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        rows = rows.contiguous()
        of_rows, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(rows if of_weight else None, weight if of_rows else None, counts)
        return _grouped(rows, weight, counts, group_type=0)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        rows, weight, counts = ctx.saved_tensors
        gradient = gradient.contiguous()
        of_rows, of_weight, _ = ctx.needs_input_grad
        return (
            _grouped(gradient, weight.transpose(1, 2), counts, group_type=0) if of_rows else None,
            _grouped(rows.t(), gradient, counts, group_type=2) if of_weight else None,
            None,
        )


def _grouped(x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor, *, group_type: int) -> torch.Tensor:
    # split_item 3: one output. group_list_type 1: counts, not cumulative sums.
    outputs = torch_npu.npu_grouped_matmul(
        [x], [weight], group_list=counts, group_list_type=1, group_type=group_type, split_item=3
    )
    output: torch.Tensor = outputs[0]
    return output
