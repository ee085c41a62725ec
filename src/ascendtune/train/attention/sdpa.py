"""torch's scaled_dot_product_attention, one call per document: no mask exists that could be wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from ascendtune.train.attention.eager import causal_window
from ascendtune.train.attention.interface import document_lengths, grouped_heads, refuse_unsupported


def sdpa_attention(
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
    """See `interface`. A window is a mask only for documents that are longer than it."""
    refuse_unsupported("sdpa", softcap, s_aux)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        length = q.shape[2]
        mask = None
        if sliding_window is not None and length > sliding_window:
            mask = causal_window(length, sliding_window, q.device)
        return scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scaling,
            dropout_p=dropout if module.training else 0.0,
            enable_gqa=grouped_heads(module),
        )

    if cu_seqlens is None or len(cu_seqlens) == 2:
        return attend(query, key, value).transpose(1, 2).contiguous(), None
    # `split` keeps the backward pass linear: slicing would zero a full-size gradient for every document.
    lengths = document_lengths(cu_seqlens)
    documents = zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True)
    return torch.cat([attend(q, k, v).transpose(1, 2) for q, k, v in documents], dim=1), None
