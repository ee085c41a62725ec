"""SDPA with fp32 inside, whatever the precision outside: what `auto` takes on CPU.

torch's flash kernel for CPU is slow on bf16: on documents of 40 to 200 tokens forward and backward take 1.3 to 4 times
as long as the same in fp32, casts included (torch 2.13, AVX-512 with bf16 instructions); from 500 on they are equal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ascendtune.train.attention.sdpa import sdpa_attention


def sdpa_attention_in_fp32(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """See `interface`."""
    output, _ = sdpa_attention(module, query.float(), key.float(), value.float(), attention_mask, **options)
    return output.to(query.dtype), None
