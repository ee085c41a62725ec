"""Ascend's fused attention in TND layout. Lengths are host integers: they are not copied from the device.

Parameters follow the torch_npu documentation of npu_fusion_attention: `input_layout="TND"` is (tokens, heads, head_dim)
with cumulative lengths without the leading 0; `sparse_mode=3` is causal from the lower right with a compressed
2048×2048 mask, `sparse_mode=4` adds a band of `pre_tockens` (the vendor's spelling) to the left. A call supports at
most 1024 documents and a million tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch_npu
from torch import nn

from ascendtune.core.log import warn
from ascendtune.train.attention.interface import eager_attention, refuse_softcap
from ascendtune.train.attention.sinks import Gradients, attend_with_sinks
from ascendtune.train.precision import in_autocast_type

_MOST_DOCUMENTS, _MOST_TOKENS = 1024, 1_000_000
_ALLOWED = {torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Rounding error, as a share of the largest value."""


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

    Rows of a padded batch are documents of equal length, so one layout serves both. Sinks are computed by
    `eager_attention` with dropout, or if the operator's backward pass does not compute them on this device.
    """
    refuse_softcap("npu_fusion", softcap)
    query, key, value = in_autocast_type(query, key, value)
    keep = 1.0 - (dropout if module.training else 0.0)
    widths = query.shape[-1], value.shape[-1]
    if s_aux is not None and (keep < 1 or not _computes_sinks(query.device, query.dtype, *widths)):
        return eager_attention(
            module, query, key, value, attention_mask,
            scaling=scaling, dropout=dropout, sliding_window=sliding_window, s_aux=s_aux, cu_seqlens=cu_seqlens,
        )  # fmt: skip
    batch, tokens = query.shape[0], query.shape[2]
    ends = list(cu_seqlens[1:]) if cu_seqlens else [tokens * (row + 1) for row in range(batch)]
    q, k, v = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    scale = widths[0] ** -0.5 if scaling is None else scaling

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: list[int]) -> torch.Tensor:
        fused = _Fused(ends, scale, sliding_window, keep)
        return fused(q, k, v)[0] if s_aux is None else attend_with_sinks(fused, q, k, v, s_aux)

    calls = _calls(ends)
    if len(calls) == 1:
        output = attend(q, k, v, ends)
    else:
        lengths = [call[-1] for call in calls]
        parts = zip(q.split(lengths), k.split(lengths), v.split(lengths), calls, strict=True)
        output = torch.cat([attend(*part) for part in parts])
    return output.unflatten(0, (batch, tokens)), None


@dataclass(frozen=True)
class _Fused:
    """The operator for documents that end at `ends`. All tensors are (tokens, heads, head_dim)."""

    ends: list[int]
    scale: float
    window: int | None
    keep: float = 1.0
    """Share of the weights that dropout keeps."""

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The output, and the largest score and Σ exp(score - largest) of each query, in the operator's layout."""
        outputs: tuple[torch.Tensor, ...] = torch_npu.npu_fusion_attention(
            query, key, value, query.shape[1], scale=self.scale, **self._options(query.device)
        )[:3]
        return outputs

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output, largest, total = self(query, key, value)
        # Both are (tokens, heads, 8) by their shape; in memory they are (heads, tokens of the document, 8) for one
        # document after the other, eight times the same number. So MindSpeed's ring attention reads them
        # (`flatten_softmax`, mindspeed/core/context_parallel/utils.py).
        log_sums = (largest + total.log()).flatten()[::8]
        heads, lengths = query.shape[1], self._lengths()
        parts = log_sums.split([heads * each for each in lengths])
        return output, torch.cat([each.view(heads, -1) for each in parts], dim=1)

    def backward(
        self, gradient: torch.Tensor, inputs: Gradients, output: torch.Tensor, log_sums: torch.Tensor
    ) -> Gradients:
        # exp(score - largest) / total is the same for log_sums and 1 as for the two numbers of the forward pass.
        in_memory = torch.cat([each.flatten() for each in log_sums.split(self._lengths(), dim=1)])
        largest = in_memory[:, None].repeat(1, 8).view(len(output), -1, 8)
        query_gradient, key_gradient, value_gradient = torch_npu.npu_fusion_attention_grad(
            *inputs, gradient, output.shape[1], scale_value=self.scale, attention_in=output,
            softmax_max=largest, softmax_sum=torch.ones_like(largest), **self._options(output.device),
        )[:3]  # fmt: skip
        return query_gradient, key_gradient, value_gradient

    def _lengths(self) -> list[int]:
        return [end - begin for begin, end in zip([0, *self.ends], self.ends, strict=False)]

    def _options(self, device: torch.device) -> dict[str, Any]:
        return {
            "input_layout": "TND",
            "keep_prob": self.keep,
            "atten_mask": _compressed_causal_mask(device),
            "actual_seq_qlen": self.ends,
            "actual_seq_kvlen": self.ends,
            "sparse_mode": 3 if self.window is None else 4,
            "pre_tockens": 2147483647 if self.window is None else self.window - 1,
            "next_tockens": 0,
        }


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


@lru_cache(maxsize=8)
def _computes_sinks(device: torch.device, dtype: torch.dtype, width: int, width_of_values: int) -> bool:
    """Whether the operator, called as `sinks` does, gives output and gradients of `eager_attention` on this device.

    If not, warn. The layout of its statistics is not documented.
    """
    ends, window = [37, 38, 130], 16
    generator = torch.Generator().manual_seed(0)
    shapes = (1, 4, ends[-1], width), (1, 2, ends[-1], width), (1, 2, ends[-1], width_of_values), (4,)
    drawn = [torch.randn(shape, generator=generator).to(dtype).float() for shape in shapes]
    direction = torch.randn((ends[-1], 4, width_of_values), generator=generator)

    def results(inputs: list[torch.Tensor], output: torch.Tensor) -> list[torch.Tensor]:
        gradients = torch.autograd.grad(output, inputs, direction.to(output))
        return [each.detach().float().cpu() for each in (output, *gradients)]

    # Hooks that keep tensors as they are hide this from hooks of the caller, which count or offload what is saved.
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda each: each, lambda each: each):
        on_host = [each.requires_grad_() for each in drawn]
        query, key, value, sinks = on_host
        reference, _ = eager_attention(
            nn.Module(), query, key, value, None, sliding_window=window, s_aux=sinks, cu_seqlens=(0, *ends)
        )
        expected = results(on_host, reference[0])
        try:
            inputs = [each.detach().to(device, dtype).requires_grad_() for each in on_host]
            query, key, value = (each[0].transpose(0, 1) for each in inputs[:3])
            output = attend_with_sinks(_Fused(ends, width**-0.5, window), query, key, value, inputs[3])
            found = results(inputs, output)
        # Errors of any class: the operator may not support this dtype or shape.
        except Exception as error:  # noqa: BLE001
            reason = f"it fails: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
        else:
            shares = [
                float((one - other).abs().max() / other.abs().max()) for one, other in zip(found, expected, strict=True)
            ]
            if all(share <= _ALLOWED[dtype] for share in shares):
                return True
            reason = f"it differs from the formula by {max(shares):.1%}"
    warn(f"attention sinks are computed in plain operators, not by npu_fusion_attention: {reason}")
    return False
