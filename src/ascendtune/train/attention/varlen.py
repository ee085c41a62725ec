"""torch's variable-length flash attention: all documents in one kernel. CUDA, bf16 or fp16; the rest goes to SDPA."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ascendtune.train.attention.interface import document_lengths, grouped_heads, refuse_unsupported
from ascendtune.train.attention.sdpa import sdpa_attention


def varlen_attention(
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
    cu_seqlens_device: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """See `interface`. `cu_seqlens_device`: (documents + 1,) int32, the same numbers where the kernel reads them."""
    refuse_unsupported("varlen", softcap, s_aux)
    fits = query.dtype in (torch.bfloat16, torch.float16) and not (dropout and module.training)
    if cu_seqlens is None or cu_seqlens_device is None or not fits:
        return sdpa_attention(
            module, query, key, value, attention_mask,
            scaling=scaling, dropout=dropout, sliding_window=sliding_window, cu_seqlens=cu_seqlens,
        )  # fmt: skip
    from torch.nn.attention.varlen import varlen_attn

    longest = max(document_lengths(cu_seqlens))
    q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    # A flash window counts the keys to the left of the query, the model's window includes the query itself.
    left = sliding_window - 1 if sliding_window is not None else -1
    output = varlen_attn(
        q, k, v, cu_seqlens_device, cu_seqlens_device, longest, longest,
        scale=scaling, window_size=(left, 0), enable_gqa=grouped_heads(module),
    )  # fmt: skip
    assert isinstance(output, torch.Tensor)
    return output.unsqueeze(0), None
