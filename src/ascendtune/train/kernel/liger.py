"""Liger's Triton kernels for CUDA, if the package liger-kernel is installed.

In a separate file, because its imports fail without the package. All inputs and results: as in `FusableNorm`,
`FusableRotary` and `FusableMlp`, that is hidden (…, width), query (batch, heads, tokens, width), gate (…, width).
"""

from __future__ import annotations

import torch
from liger_kernel.ops.rms_norm import LigerRMSNormFunction
from liger_kernel.ops.rope import LigerRopeFunction
from liger_kernel.ops.swiglu import LigerSiLUMulFunction


def liger_rms_norm(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    # offset 0: the weight is the whole factor. "llama": normalised in fp32. Not in place: the caller uses the gradient.
    output: torch.Tensor = LigerRMSNormFunction.apply(hidden, weight, epsilon, 0.0, "llama", False)
    return output


def liger_rope(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    # It overwrites its inputs, which autograd or the model may still need.
    query, key = LigerRopeFunction.apply(query.clone(), key.clone(), cos, sin)
    return query, key


def liger_silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = LigerSiLUMulFunction.apply(gate, up)
    return output
