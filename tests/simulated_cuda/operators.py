"""Operators that CUDA has and the CPU has not, or not in this form."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch.utils._pytree import tree_map

from simulated_cuda.pending import arrive_later, drain, is_pinned, require_unchanged, wait
from simulated_cuda.tensors import OPERATORS, OnCuda, inner_of


def _copy(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    target, source, *rest = args
    is_queued = bool(rest[0]) if rest else bool(kwargs.get("non_blocking"))
    if isinstance(target, OnCuda):
        if not isinstance(source, OnCuda):
            drain()
        target.inner.copy_(inner_of(source))
        if not isinstance(source, OnCuda) and source.ndim:
            if is_queued and is_pinned(source):
                require_unchanged(source)
            else:
                wait("copy to the device")
    elif is_queued and is_pinned(target):
        arrive_later(target, source.inner.to(target.dtype).expand(target.shape).clone())
    else:
        target.copy_(source.inner)
        wait("copy to the host")
    return target  # type: ignore[no-any-return]


def _softmax(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    tensor, dim, widens = args
    return OnCuda(function(tensor.inner.float() if widens else tensor.inner, dim, False))


def _softmax_backward(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    gradient, output, dim, dtype = args
    return OnCuda(function(gradient.inner, output.inner, dim, gradient.dtype).to(dtype))


def _histogram(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return OnCuda(function(args[0].inner.float(), *args[1:], **kwargs).to(args[0].dtype))


def _addmm(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """With `out_dtype` the product of 16-bit matrices is added in fp32 without being rounded."""
    if "dtype" in function._overloadname:
        total, one, other = (each.inner for each in args[:3])
        assert one.dtype == other.dtype != torch.float32 == kwargs.get("out_dtype", args[3])
        found = total.float() + one.float() @ other.float()
    else:
        plain = {key: value for key, value in kwargs.items() if key != "out"}
        found = function.overloadpacket(*tree_map(inner_of, args), **plain)
    if (out := kwargs.get("out")) is None:
        return OnCuda(found)
    out.inner.copy_(found)
    return out  # type: ignore[no-any-return]


def _varlen_attention(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """FlashAttention of documents, with what its kernel demands (flash_attn/flash_api.cpp of torch)."""
    given = _named(function, args, kwargs)
    query, key, value, ends = (given[name] for name in ("query", "key", "value", "cu_seq_q"))
    for each in (query, key, value):
        assert each.dtype in (torch.float16, torch.bfloat16) and each.dtype == query.dtype, each.dtype
        assert each.shape[-1] == query.shape[-1] <= 256 and each.shape[-1] % 8 == 0 and each.stride(-1) == 1
    assert ends.dtype == torch.int32 and ends.is_contiguous() and isinstance(ends, OnCuda)
    borders = ends.inner.tolist()
    assert borders[0] == 0 and borders[-1] == len(query)
    assert max(end - begin for begin, end in pairwise(borders)) == given["max_q"]
    outputs, sums = [], []
    for document in _documents(given):
        sums.append(document.scores.logsumexp(-1))
        outputs.append(torch.einsum("hqk,khd->qhd", document.scores.softmax(-1), document.value))
    output = torch.cat(outputs).to(query.dtype)
    return OnCuda(output), OnCuda(torch.cat(sums, -1)), OnCuda(torch.zeros(2, dtype=torch.uint64))


def _varlen_attention_backward(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.Tensor, ...]:
    """From the logsumexp and the output that it is given, as the kernel; autograd is off below the dispatcher."""
    given = _named(function, args, kwargs)
    gradients: list[list[torch.Tensor]] = [[], [], []]
    for document in _documents(given):
        output, gradient = (given[name].inner[document.part].float() for name in ("out", "grad_out"))
        weights = (document.scores - given["lse"].inner[:, document.part, None]).exp()
        of_weights = torch.einsum("qhd,khd->hqk", gradient, document.value)
        of_scores = weights * (of_weights - (gradient * output).sum(-1).t()[..., None]) * document.scale
        gradients[0].append(torch.einsum("hqk,khd->qhd", of_scores, document.key))
        for found, of_key in zip(
            gradients[1:],
            (
                torch.einsum("hqk,qhd->khd", of_scores, document.query),
                torch.einsum("hqk,qhd->khd", weights, gradient),
            ),
            strict=True,
        ):
            found.append(of_key.unflatten(1, (given["key"].shape[1], -1)).sum(2))
    return tuple(OnCuda(torch.cat(each).to(given["query"].dtype)) for each in gradients)


class _Document:
    """Attention of one document: (tokens, heads, width) fp32 each, and (heads, tokens, tokens) masked scores."""

    def __init__(self, given: dict[str, Any], begin: int, end: int) -> None:
        self.part = slice(begin, end)
        groups = given["query"].shape[1] // given["key"].shape[1]
        self.query = given["query"].inner[self.part].float()
        self.key, self.value = (
            given[name].inner[self.part].float().repeat_interleave(groups, 1) for name in ("key", "value")
        )
        self.scale = self.query.shape[-1] ** -0.5 if given["scale"] is None else given["scale"]
        position = torch.arange(end - begin)
        distance = position[:, None] - position
        left, right = given["window_size"]
        seen = (distance <= left) | (left < 0)
        seen &= -distance <= (0 if given["is_causal"] else right)
        scores = torch.einsum("qhd,khd->hqk", self.query, self.key) * self.scale
        self.scores = scores.masked_fill(~seen, float("-inf"))


def _documents(given: dict[str, Any]) -> list[_Document]:
    return [_Document(given, *borders) for borders in pairwise(given["cu_seq_q"].inner.tolist())]


def _named(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [each.name for each in function._schema.arguments]
    given = {**dict.fromkeys(names), **dict(zip(names, args, strict=False)), **kwargs}
    if function._schema.name == "aten::_flash_attention_backward":
        # The operator that torch_attn's calls, with names of its own.
        window = [given["window_size_left"], given["window_size_right"]]
        given |= {"cu_seq_q": given["cum_seq_q"], "lse": given["logsumexp"], "window_size": window}
    return given


OPERATORS |= {
    "aten::copy_": _copy,
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_log_softmax_backward_data": _softmax_backward,
    "aten::histc": _histogram,
    "aten::addmm": _addmm,
    "torch_attn::_varlen_attn": _varlen_attention,
    "torch_attn::_varlen_attn_backward": _varlen_attention_backward,
    "aten::_flash_attention_backward": _varlen_attention_backward,
}
