"""LoRA on stacked experts as grouped low-rank products: rows·W + scale·(rows·A)·B, each row with its expert's matrices.

PEFT (`ParamWrapper`) adds A·B to the weights of all experts in each forward pass and keeps the sums for the backward
pass, which computes a gradient of their size: 1.2 GB each for a layer of Qwen3-30B-A3B in bf16. Here a layer keeps
rank numbers for each row, and weights that are not trained get no gradient. Small changes are not lost by rounding the
sum to bf16, either.

Parameters, their names, files, merging and everything but `forward` are PEFT's. PEFT's `forward` is used for merged or
disabled adapters, and if parts that are not called here have hooks: dumps and DeepSpeed ZeRO-3 register them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from peft.tuners.lora.layer import ParamWrapper
from torch import nn

from ascendtune.train.kernel.experts import FusableExperts, stacked_experts
from ascendtune.train.kernel.fusable import FusableModule, Kernel, randn
from ascendtune.train.precision import cast_weight

_RANK_MULTIPLE = 8
"""CUDA's grouped product needs rows of a multiple of 16 bytes: 8 numbers in bf16."""


class AdaptedExperts(FusableModule):
    """The outermost of PEFT's wrappers, one for each adapted matrix, around experts with a replaced forward.

    Kernels are those of `FusableExperts`.
    """

    multiplies_inside = True

    def __init__(self, wrapper: nn.Module, experts: FusableExperts) -> None:
        super().__init__(wrapper)
        self._experts = experts

    def forward_with(self, kernel: Kernel) -> Callable[..., Any]:
        transposed = self._experts.transposed

        def forward(self: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            wrappers = _wrappers(self)
            if not all(map(_adds_its_own, wrappers)):
                return type(self).forward(self, hidden_states, *args, **kwargs)  # type: ignore[no-any-return]
            adapters = {
                each.parameter_name: partial(_add_product, kernel, each, transposed=transposed) for each in wrappers
            }
            output: torch.Tensor = self.get_base_layer()(hidden_states, *args, adapters=adapters, **kwargs)
            return output

        return forward

    def samples(self, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
        hidden, index, weights, *frozen = self._experts.samples(device, dtype)
        count, experts = len(frozen[0]), self._experts.module.num_experts
        samples = [hidden, index, weights, *(nn.Parameter(each.detach(), requires_grad=False) for each in frozen)]
        for seed, (matrix, axis) in enumerate(self._low_rank_matrices(), 10):
            shape = [size // experts * count if each == axis else size for each, size in enumerate(matrix.shape)]
            # B starts from zeros. Here adapters change outputs about as much as the weights do, so that errors show.
            values = randn(tuple(shape), device, torch.float32, seed=seed) * math.prod(shape) ** -0.25
            samples.append(nn.Parameter(values.to(matrix.dtype)))
        return samples

    def run(self, *samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden, index, weights, *parameters = samples
        own = [*self._experts.parameters(), *(matrix for matrix, _ in self._low_rank_matrices())]
        # A copy with these parameters instead of its own, which are not copied.
        small = copy.deepcopy(self.module, {id(each): one for each, one in zip(own, parameters, strict=True)})
        for each in (*_wrappers(small), small.get_base_layer()):
            each.num_experts = len(parameters[0])
        return (small(hidden, index, weights),)

    def _low_rank_matrices(self) -> list[tuple[nn.Parameter, int]]:
        """A and B of each adapter and wrapper, and the dimension in which each has the ranks of all experts."""
        return [
            (matrices[name].weight, axis)
            for wrapper in _wrappers(self.module)
            for axis, matrices in enumerate((wrapper.lora_A, wrapper.lora_B))
            for name in matrices
        ]


def find_adapted_experts(model: nn.Module) -> Iterator[AdaptedExperts]:
    """All adapted experts in `model` whose own forward has been replaced."""
    replaced = {id(each.module): each for each in stacked_experts(model) if each.is_replaced}
    inner: set[int] = set()
    for module in model.modules():
        if isinstance(module, ParamWrapper) and id(module) not in inner:
            inner.update(map(id, _wrappers(module)))
            if experts := replaced.get(id(module.get_base_layer())):
                yield AdaptedExperts(module, experts)


def _wrappers(module: Any) -> list[Any]:
    """PEFT's wrappers of one module, from the outermost."""
    wrappers = []
    while isinstance(module, ParamWrapper):
        wrappers.append(module)
        module = module.base_layer
    return wrappers


def _adds_its_own(wrapper: Any) -> bool:
    """Whether the adapters of a wrapper can be added here."""
    parts = [*wrapper.lora_A.values(), *wrapper.lora_B.values()]
    if isinstance(wrapper.base_layer, ParamWrapper):
        parts.append(wrapper.base_layer)
    has_hooks = any(each._forward_hooks or each._forward_pre_hooks or each._backward_hooks for each in parts)
    return not (wrapper.disable_adapters or wrapper.merged or has_hooks)


def _add_product(
    kernel: Kernel, wrapper: Any, output: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor, *, transposed: bool
) -> torch.Tensor:
    """Add the products of the active adapters to `output`, (rows, out), in place.

    Args:
        rows: (rows, in), sorted by expert, of the same dtype.
        counts: (experts,) int64.
        transposed: whether the experts' weights are stored as (experts, in, out).
    """
    for name in wrapper.active_adapters:
        if name not in wrapper.lora_A:
            continue
        # PEFT's names follow the order in which it believes the weights to be stored.
        a = cast_weight(wrapper.lora_A[name].weight, rows.dtype).unflatten(0, (wrapper.num_experts, -1))
        b = (
            cast_weight(wrapper.lora_B[name].weight, rows.dtype)
            .unflatten(1, (-1, wrapper.num_experts))
            .permute(2, 1, 0)
        )
        believed = getattr(wrapper.get_base_layer(), "is_transposed", False)
        first, second = (a, b) if believed == transposed else (b, a)
        missing = -a.shape[1] % _RANK_MULTIPLE
        first, second = (nn.functional.pad(each, (0, 0, 0, missing)).contiguous() for each in (first, second))
        low = kernel(rows, first.transpose(1, 2), counts)
        output = output.add_(kernel(low, second, counts), alpha=wrapper.scaling[name])
    return output
