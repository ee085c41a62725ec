"""The fused rotary embedding replaces only the calls that it computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ascendtune.train.kernel.rotary import find_rotary, rotate_by_halves


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def apply_rotary_pos_emb(q: Any, k: Any = None, cos: Any = None, sin: Any = None, unsqueeze_dim: int = 1) -> Any:
    """As Qwen4 has it: without a key the query is rotated alone."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return _turned(q, cos, sin) if k is None else (_turned(q, cos, sin), _turned(k, cos, sin))


class Attention(nn.Module):
    head_dim = 8

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.ones(4))

    def forward(self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        alone = apply_rotary_pos_emb(q.transpose(1, 2), cos=cos, sin=sin, unsqueeze_dim=2)
        return alone.transpose(1, 2), *apply_rotary_pos_emb(q, k, cos, sin)


def test_calls_without_a_key_are_the_models_own() -> None:
    model, calls = Attention(), 0

    def kernel(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        nonlocal calls
        calls += 1
        return rotate_by_halves(*arguments)

    torch.manual_seed(0)
    angles = torch.randn(1, 5, 4).repeat(1, 1, 2)
    inputs = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8), angles.cos(), angles.sin()
    expected = model(*inputs)
    [found] = find_rotary(model, torch.device("cpu"))
    found.replace_forward(kernel)
    for ours, own in zip(model(*inputs), expected, strict=True):
        torch.testing.assert_close(ours, own)
    assert calls == 1
