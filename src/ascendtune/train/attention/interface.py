"""One attention function per device, handed to transformers under a name of ours.

Every function has the signature of transformers' attention interface and the same meaning:

    query:  (batch, heads, tokens, head_dim)
    key, value:  (batch, key_value_heads, tokens, head_dim)
    returns: ((batch, tokens, heads, head_dim), None)

Attention is causal. With `cu_seqlens` (host integers 0 … tokens) batch is 1 and a token sees only its own document.
Without it every row is one document, padded on the right: a causal token never sees the padding behind it, so no mask
is needed. transformers builds no mask for a name that it has no mask function for, which is what we want: no
(tokens × tokens) mask exists anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pkgutil import resolve_name

import torch
from torch import nn

from ascendtune.core.errors import MachineError, RecipeError

AttentionFunction = Callable[..., tuple[torch.Tensor, None]]

TABLE = {
    "eager": "ascendtune.train.attention.eager:eager_attention",
    "sdpa": "ascendtune.train.attention.sdpa:sdpa_attention",
    "sdpa_fp32": "ascendtune.train.attention.sdpa_fp32:sdpa_attention_in_fp32",
    "varlen": "ascendtune.train.attention.varlen:varlen_attention",
    "npu_fusion": "ascendtune.train.attention.npu:npu_fusion_attention",
}


def register(name: str) -> str:
    """Make the attention `name` of the table known to transformers; returns what to give as `attn_implementation`.

    Raises:
        MachineError: it needs a package that is not here.
    """
    from transformers import AttentionInterface

    try:
        function = resolve_name(TABLE[name])
    except ImportError as error:
        raise MachineError(
            f"model.attention: {name} needs {error.name}, which is not installed",
            code="package-missing",
            remedy="set model.attention: auto",
        ) from error
    # transformers asks a model for its own SDPA where a name contains that word; whether ours fits, a proof says.
    registered = f"ascendtune_{name.replace('sdpa', 'dot_product')}"
    AttentionInterface.register(registered, function)
    return registered


def document_lengths(cu_seqlens: tuple[int, ...]) -> list[int]:
    """(0, 3, 7) -> [3, 4]."""
    return [end - start for start, end in pairwise(cu_seqlens)]


def grouped_heads(module: nn.Module) -> bool:
    """Whether several query heads share one key-value head."""
    return getattr(module, "num_key_value_groups", 1) > 1


def refuse_unsupported(name: str, softcap: float | None, s_aux: torch.Tensor | None) -> None:
    """Fused attentions that would silently drop a part of the formula refuse instead.

    Raises:
        RecipeError: this model has such a part.
    """
    if softcap is not None or s_aux is not None:
        raise RecipeError(
            f"{name} computes neither soft-capped scores nor attention sinks, and this model has them",
            code="attention-lacks-softcap",
            remedy="set model.attention: eager",
        )
