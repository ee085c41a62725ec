"""One attention function per device, registered with transformers under names of this project.

Each function has the signature and the meaning of transformers' attention interface. All inputs and results:

    query:  (batch, heads, tokens, head_dim)
    key, value:  (batch, key_value_heads, tokens, head_dim)
    returns: ((batch, tokens, heads, head_dim), None)

It is softmax(Q·Kᵀ·scale)·V (Vaswani et al. 2017, arXiv 1706.03762, eq. 1), causal. With `cu_seqlens` (host integers
0 … tokens) batch is 1 and a token attends to its own document only. Without it each row is one document, padded on the
right: a causal token never attends to the padding after it, so no mask is needed. transformers builds no mask for names
without a registered mask function, as intended: there is no (tokens × tokens) mask anywhere.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from importlib.util import find_spec
from itertools import pairwise
from pkgutil import resolve_name
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from ascendtune.core.errors import MachineError, RecipeError
from ascendtune.train.attention.sinks import Gradients, attend_with_sinks
from ascendtune.train.precision import in_autocast_type

TABLE = {
    "eager": "ascendtune.train.attention.interface:eager_attention",
    "sdpa": "ascendtune.train.attention.interface:sdpa_attention",
    "sdpa_fp32": "ascendtune.train.attention.interface:sdpa_fp32_attention",
    "varlen": "ascendtune.train.attention.interface:varlen_attention",
    "npu_fusion": "ascendtune.train.attention.npu:npu_fusion_attention",
}


def register(name: str) -> str:
    """Register the attention `name` of the table with transformers; return the value for `attn_implementation`.

    Raises:
        MachineError: it needs a package that is not installed.
    """
    from transformers import AttentionInterface

    if name == "varlen" and find_spec("torch.nn.attention.varlen") is None:
        raise MachineError(
            f"model.attention: varlen needs torch 2.10 or newer, this is {torch.__version__}",
            code="package-missing",
            remedy="set model.attention: auto",
        )
    try:
        function = resolve_name(TABLE[name])
    except ImportError as error:
        raise MachineError(
            f"model.attention: {name} needs {error.name}, which is not installed",
            code="package-missing",
            remedy="set model.attention: auto",
        ) from error
    # For names that contain "sdpa", transformers checks whether the model declares support for it; `AttentionTrial`
    # tests this project's function instead.
    registered = f"ascendtune_{name.replace('sdpa', 'dot_product')}"
    AttentionInterface.register(registered, _with_window(function))
    return registered


def _with_window(function: Callable[..., tuple[torch.Tensor, None]]) -> Callable[..., tuple[torch.Tensor, None]]:
    """`function` for layers, too, that pass no window: transformers' mask, which is not made here, would contain it."""

    @wraps(function)
    def attend(module: nn.Module, *inputs: Any, **options: Any) -> tuple[torch.Tensor, None]:
        options.setdefault("sliding_window", _window(module))
        return function(module, *inputs, **options)

    return attend


def _window(layer: nn.Module) -> int | None:
    """The window of a layer: its own (Qwen2-MoE), or that of all layers (Phi-MoE)."""
    config = getattr(layer, "config", None)
    of_all = getattr(config, "sliding_window", None) if getattr(config, "layer_types", None) is None else None
    window: int | None = getattr(layer, "sliding_window", of_all)
    return window


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
    """Attention in plain operators: the reference for the others, and the only one with soft-capping.

    Scores z become cap·tanh(z / cap) (Gemma 2, arXiv 2408.00118, section 2); a sink is a learned summand in the
    denominator of the softmax (see `sinks`).

    Shapes as in the module. Memory grows with the square of the longest document.
    """
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
            # A sink is another key that gets weight but has no value.
            sinks = s_aux.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1).to(scores.dtype)
            scores = torch.cat([scores, sinks], dim=-1)
        weights = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(v.dtype)
        if s_aux is not None:
            weights = weights[..., :-1]
        outputs.append(nn.functional.dropout(weights, dropout, module.training) @ v)
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def causal_window(length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """(length, length) bool: the keys that each query sees. A window of w includes the query's own position."""
    position = torch.arange(length, device=device)
    distance = position[:, None] - position[None, :]
    return (distance >= 0) & (distance < window) if window is not None else distance >= 0


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
    """torch's scaled_dot_product_attention, one call per document, so documents need no mask.

    Shapes as in the module. A window needs a mask, only in documents that are longer than it. Sinks, which torch's
    operator lacks, are computed by `eager_attention`.
    """
    refuse_softcap("sdpa", softcap)
    if s_aux is not None:
        return eager_attention(
            module, query, key, value, attention_mask,
            scaling=scaling, dropout=dropout, sliding_window=sliding_window, s_aux=s_aux, cu_seqlens=cu_seqlens,
        )  # fmt: skip

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
    # `split` keeps the backward pass linear: slices would need a full-size gradient for each document.
    lengths = document_lengths(cu_seqlens)
    documents = zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True)
    return torch.cat([attend(q, k, v).transpose(1, 2) for q, k, v in documents], dim=1), None


def sdpa_fp32_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """SDPA computed in fp32, whatever the precision outside: the choice of `auto` on CPU. Shapes as in the module.

    torch's flash kernel for CPU is slow in bf16: on documents of 40 to 200 tokens forward and backward take 1.3 to 4
    times as long as in fp32, casts included (torch 2.13, AVX-512 with bf16 instructions); from 500 on they are equally
    fast.
    """
    # Autocast would cast them to bf16 again.
    with torch.autocast(query.device.type, enabled=False):
        output, _ = sdpa_attention(module, query.float(), key.float(), value.float(), attention_mask, **options)
    return output.to(query.dtype), None


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
    """torch's variable-length flash attention: all documents in one kernel. CUDA, bf16 or fp16; otherwise SDPA is used.

    Shapes as in the module; cu_seqlens_device: (documents + 1,) int32, the same numbers on the device.

    The kernel supports heads of one width, a multiple of 8 up to 256 (flash_attn/flash_api.cpp of torch 2.11), so not
    Gemma 4's of 512. Values that are narrower (multi-head latent attention) get columns of zeros, which add nothing.
    """
    refuse_softcap("varlen", softcap)
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = in_autocast_type(query, key, value)
    width, of_values = query.shape[-1], value.shape[-1]
    fits = query.dtype in (torch.bfloat16, torch.float16) and not (dropout and module.training)
    fits = fits and of_values <= width and width % 8 == 0 and width <= 256
    default = scaling is None or math.isclose(scaling, query.shape[-1] ** -0.5)
    options = varlen_options(
        _parameters(varlen_attn), None if default else scaling, sliding_window, grouped=grouped_heads(module)
    )
    if cu_seqlens is None or cu_seqlens_device is None or not fits or options is None:
        return sdpa_attention(
            module, query, key, value, attention_mask,
            scaling=scaling, dropout=dropout, sliding_window=sliding_window, s_aux=s_aux, cu_seqlens=cu_seqlens,
        )  # fmt: skip
    longest = max(document_lengths(cu_seqlens))
    if of_values < width:
        value = nn.functional.pad(value, (0, width - of_values))
    # `squeeze`, not `[0]`: the gradient of an index is a tensor of zeros into which the gradient is copied.
    q, k, v = (tensor.squeeze(0).transpose(0, 1).contiguous() for tensor in (query, key, value))
    if s_aux is None:
        output = varlen_attn(q, k, v, cu_seqlens_device, cu_seqlens_device, longest, longest, **options)
    else:
        output = attend_with_sinks(_Varlen(cu_seqlens_device, longest, options), q, k, v, s_aux)
    assert isinstance(output, torch.Tensor)
    return output[..., :of_values].unsqueeze(0), None


@dataclass(frozen=True)
class _Varlen:
    """The flash attention behind `varlen_attn`, forward and backward."""

    ends: torch.Tensor
    """(documents + 1,) int32 cumulative lengths, on the device."""
    longest: int
    options: dict[str, Any]

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from torch.nn.attention.varlen import AuxRequest, varlen_attn

        output, log_sums = varlen_attn(
            query, key, value, self.ends, self.ends, self.longest, self.longest,
            return_aux=AuxRequest(lse=True), **self.options,
        )  # fmt: skip
        assert log_sums.shape == (query.shape[1], len(query)), "torch returns its logsumexp in another layout"
        return output, log_sums

    def backward(
        self, gradient: torch.Tensor, inputs: Gradients, output: torch.Tensor, log_sums: torch.Tensor
    ) -> Gradients:
        left, right = self.options.get("window_size", (-1, 0))
        # The state of a generator for dropout, of which there is none, and a tensor that torch does not use.
        state = torch.zeros(2, dtype=torch.uint64, device=output.device)
        gradients: Gradients = torch.ops.aten._flash_attention_backward(
            gradient, *inputs, output, log_sums, self.ends, self.ends, self.longest, self.longest, 0.0, left == -1,
            state, output.new_empty(0),
            scale=self.options.get("scale"), window_size_left=left, window_size_right=right,
        )  # fmt: skip
        return gradients


def varlen_options(
    parameters: frozenset[str], scale: float | None, window: int | None, *, grouped: bool
) -> dict[str, Any] | None:
    """Options of `varlen_attn` for causal attention; None if this version of torch does not support it.

    torch 2.10 has `is_causal`; 2.11 has `scale` and `window_size` instead; 2.12 also has `enable_gqa`, which permits
    what the kernel did before without it (signatures of the released packages).

    Args:
        parameters: names of the parameters of `varlen_attn`.
        scale: None for head_dim ** -0.5.
        window: number of keys that a query sees, including its own.
        grouped: whether several query heads share one key-value head.
    """
    if "window_size" not in parameters:
        return {"is_causal": True} if scale is None and window is None else None
    # A flash window counts the keys before the query.
    options = {"scale": scale, "window_size": (-1 if window is None else window - 1, 0)}
    return {**options, "enable_gqa": grouped} if "enable_gqa" in parameters else options


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def document_lengths(cu_seqlens: tuple[int, ...]) -> list[int]:
    """Lengths from cumulative lengths: (0, 3, 7) -> [3, 4]."""
    return [end - start for start, end in pairwise(cu_seqlens)]


def grouped_heads(module: nn.Module) -> bool:
    """Whether several query heads share one key-value head."""
    return getattr(module, "num_key_value_groups", 1) > 1


def refuse_softcap(name: str, softcap: float | None) -> None:
    """Raise in a fused attention that would silently ignore a part of the formula.

    Raises:
        RecipeError: this model caps its scores.
    """
    if softcap is not None:
        raise RecipeError(
            f"this model uses soft-capped scores, which {name} does not support",
            code="attention-lacks-softcap",
            remedy="set model.attention: eager",
        )
