"""Ascend's fused attention in TND layout. Lengths are host integers: they are not copied from the device.

Parameters follow the torch_npu documentation of npu_fusion_attention: `input_layout="TND"` is (tokens, heads, head_dim)
with cumulative lengths without the leading 0; `sparse_mode=3` is causal from the lower right with a compressed
2048×2048 mask, `sparse_mode=4` adds a band of `pre_tockens` (the vendor's spelling) to the left. A call supports at
most 1024 documents and a million tokens.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch_npu
from torch import nn

from ascendtune.train.attention.interface import refuse_unsupported
from ascendtune.train.precision import in_autocast_type

_MOST_DOCUMENTS, _MOST_TOKENS = 1024, 1_000_000


def npu_fusion_attention(
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
    """((batch, tokens, heads, head_dim), None); inputs as in `interface`, but values may be narrower.

    Rows of a padded batch are documents of equal length, so one layout serves both.
    """
    refuse_unsupported("npu_fusion", softcap, s_aux)
    batch, heads, tokens, head_dim = query.shape
    ends = list(cu_seqlens[1:]) if cu_seqlens else [tokens * (row + 1) for row in range(batch)]
    q, k, v = (tensor.transpose(1, 2).flatten(0, 1) for tensor in in_autocast_type(query, key, value))
    windowed = sliding_window is not None

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: list[int]) -> torch.Tensor:
        output: torch.Tensor = torch_npu.npu_fusion_attention(
            q,
            k,
            v,
            heads,
            input_layout="TND",
            scale=head_dim**-0.5 if scaling is None else scaling,
            keep_prob=1.0 - (dropout if module.training else 0.0),
            atten_mask=_compressed_causal_mask(query.device),
            actual_seq_qlen=ends,
            actual_seq_kvlen=ends,
            sparse_mode=4 if windowed else 3,
            pre_tockens=sliding_window - 1 if sliding_window is not None else 2147483647,
            next_tockens=0,
        )[0]
        return output

    calls = _calls(ends)
    if len(calls) == 1:
        output = attend(q, k, v, ends)
    else:
        lengths = [call[-1] for call in calls]
        parts = zip(q.split(lengths), k.split(lengths), v.split(lengths), calls, strict=True)
        output = torch.cat([attend(*part) for part in parts])
    return output.reshape(batch, tokens, heads, value.shape[-1]), None


def _calls(ends: list[int]) -> list[list[int]]:
    """Divide the documents that end at `ends` into calls of supported size: the ends of documents in each call."""
    calls: list[list[int]] = []
    begin = before = 0
    for end in ends:
        if not calls or len(calls[-1]) == _MOST_DOCUMENTS or end - begin > _MOST_TOKENS:
            calls.append([])
            begin = before
        calls[-1].append(end - begin)
        before = end
    return calls


@lru_cache(maxsize=8)
def _compressed_causal_mask(device: torch.device) -> torch.Tensor:
    """(2048, 2048) bool, True above the diagonal: the fixed size required by sparse modes 2 to 4."""
    return torch.triu(torch.ones(2048, 2048, dtype=torch.bool, device=device), diagonal=1)
