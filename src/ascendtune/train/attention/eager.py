"""Attention written out: the reference for the others, and the only one with soft-capping and sinks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ascendtune.train.attention.interface import document_lengths


def eager_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    cu_seqlens: tuple[int, ...] | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """See `interface`. Memory grows with the square of the longest document."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    lengths = document_lengths(cu_seqlens) if cu_seqlens else [query.shape[2]]
    outputs = []
    for q, k, v in zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True):
        scores = (q @ k.transpose(-1, -2)) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores.masked_fill(~causal_window(q.shape[2], sliding_window, q.device), float("-inf"))
        if s_aux is not None:
            # A sink is one more key that takes weight and gives nothing.
            sinks = s_aux.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1).to(scores.dtype)
            scores = torch.cat([scores, sinks], dim=-1)
        weights = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(v.dtype)
        if s_aux is not None:
            weights = weights[..., :-1]
        outputs.append(nn.functional.dropout(weights, dropout, module.training) @ v)
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def causal_window(length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """(length, length) bool: which keys a query sees. A window of w includes the query's own position."""
    position = torch.arange(length, device=device)
    distance = position[:, None] - position[None, :]
    return (distance >= 0) & (distance < window) if window is not None else distance >= 0
