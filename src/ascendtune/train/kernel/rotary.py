"""Rotary position embedding by halves: x · cos + (-x₂, x₁) · sin, over all of a head or its first part.

Su et al. 2021, arXiv 2104.09864, eq. 34; x₁ and x₂ are the halves of a head, not neighbours.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from types import FunctionType
from typing import Any

import torch
from torch import nn

from ascendtune.train.kernel.fusable import FusableModule, Kernel, randn

_NAME = "apply_rotary_pos_emb"
"""Name of the function in transformers' modelling modules, and in code that models bring along."""
_Rotate = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class FusableRotary(FusableModule):
    """An attention module that calls `apply_rotary_pos_emb` of the Python module in which it is defined.

    Kernels are called with query (batch, heads, tokens, width), key, cos (batch or 1, tokens, width) and sin, all of
    one dtype, and return query and key rotated. The function is shared by all models defined in that Python module, so
    it is not changed; this attention gets a forward whose globals contain another function of that name.
    """

    def __init__(self, module: nn.Module, rotate: _Rotate, head_width: int, rotary_width: int) -> None:
        super().__init__(module)
        self.head_width = head_width
        self.rotary_width = rotary_width
        self._own = self._current = rotate

    @property
    def key(self) -> Hashable:
        return self._own, self.head_width, self.rotary_width

    def forward_with(self, kernel: Kernel) -> Callable[..., Any]:
        self._current = _with_kernel(self._own, kernel)
        own = type(self.module).forward
        forward = FunctionType(
            own.__code__, {**own.__globals__, _NAME: self._current}, own.__name__, own.__defaults__, own.__closure__
        )
        forward.__kwdefaults__ = own.__kwdefaults__
        return forward

    def restore_forward(self) -> None:
        super().restore_forward()
        self._current = self._own

    def samples(self, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
        query, key, *angles = _samples(device, dtype, self.head_width, self.rotary_width)
        return [query.requires_grad_(), key.requires_grad_(), *angles]

    def run(self, *samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._current(*samples)


def find_rotary(model: nn.Module, device: torch.device) -> list[FusableModule]:
    """All attention modules of `model` that rotate by halves on `device`."""
    frequencies = [buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq")]
    rotary_widths = sorted({2 * len(each) for each in frequencies})
    widths_by_form: dict[Hashable, tuple[int, int] | None] = {}
    modules: list[FusableModule] = []
    for module in model.modules():
        if (rotate := _rotates_with(module)) is None:
            continue
        head_width = getattr(module, "head_dim", None)
        if (rotate, head_width) not in widths_by_form:
            # Some functions get whole heads, others only the part to rotate.
            pairs = [(head, width) for width in rotary_widths for head in (head_width, width) if isinstance(head, int)]
            widths_by_form[rotate, head_width] = next(
                (pair for pair in pairs if _is_by_halves(rotate, device, *pair)), None
            )
        if (widths := widths_by_form[rotate, head_width]) is not None:
            modules.append(FusableRotary(module, rotate, *widths))
    return modules


def _rotates_with(module: nn.Module) -> _Rotate | None:
    forward = type(module).forward
    if not isinstance(forward, FunctionType):
        return None
    # Behind a decorator the code is that of a wrapper, whose effect must not be left out. If there are several
    # functions (DeepSeek also has apply_rotary_pos_emb_interleave), the model's config determines which one is called.
    if [name for name in forward.__code__.co_names if name.startswith(_NAME)] != [_NAME]:
        return None
    function = forward.__globals__.get(_NAME)
    if not callable(function):
        return None
    names = list(inspect.signature(function).parameters)
    return function if names[2:4] == ["cos", "sin"] else None


def _is_by_halves(rotate: _Rotate, device: torch.device, head_width: int, rotary_width: int) -> bool:
    samples = _samples(device, torch.float32, head_width, rotary_width)
    expected = _with_kernel(rotate, rotate_by_halves)(*samples)
    try:
        results = rotate(*samples)
    # The function has another signature, or needs other shapes.
    except (TypeError, RuntimeError, ValueError, IndexError):
        return False
    return all(
        one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-5)
        for one, other in zip(results, expected, strict=True)
    )


def rotate_by_halves(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Query and key rotated by the plain formula (arXiv 2104.09864, eq. 34, by halves).

    Query and key: (batch, heads, tokens, width); cos, sin: (batch or 1, tokens, width); all of one dtype.
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)

    def rotate(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    return rotate(query), rotate(key)


def _with_kernel(own: _Rotate, kernel: Kernel) -> _Rotate:
    def apply_rotary_pos_emb(*arguments: torch.Tensor, **named: Any) -> Any:
        # Called for other dimensions, or without a key (Qwen4).
        if named or len(arguments) != 4:
            return own(*arguments, **named)
        q, k, cos, sin = arguments
        width, dtype = cos.shape[-1], torch.promote_types(q.dtype, cos.dtype)
        parts = [each[..., :width].to(dtype) for each in (q, k)]
        rotated = kernel(*parts, cos.to(dtype), sin.to(dtype))
        if width == q.shape[-1]:
            return rotated[0], rotated[1]
        results = [torch.cat((part, each[..., width:]), dim=-1) for part, each in zip(rotated, (q, k), strict=True)]
        return results[0], results[1]

    return apply_rotary_pos_emb


def _samples(device: torch.device, dtype: torch.dtype, head_width: int, rotary_width: int) -> list[torch.Tensor]:
    angles = randn((1, 5, rotary_width // 2), device, torch.float32).repeat(1, 1, 2)
    # More query heads than key heads, as in most models.
    heads = [randn((1, count, 5, head_width), device, dtype, seed=count) for count in (4, 2)]
    return [*heads, angles.cos().to(dtype), angles.sin().to(dtype)]
