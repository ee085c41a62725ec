"""Ascend's fused operators, as the torch_npu documentation describes them."""

from __future__ import annotations

import torch
import torch_npu


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
    output: torch.Tensor = torch_npu.npu_swiglu(torch.cat((gate, up), dim=-1), dim=-1)
    return output
