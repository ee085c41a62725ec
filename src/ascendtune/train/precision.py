"""Dtypes of weights and of matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ascendtune.core.errors import MachineError, RecipeError
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.recipe import Recipe

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_shared: dict[tuple[int, torch.dtype], torch.Tensor] | None = None
"""Casts of weights by their ids, within `Precision.shared_casts`; for all threads: autograd recomputes in its own."""


@dataclass(frozen=True)
class Precision:
    """Result of `precision` and `model.dtype` on one device, with the reason."""

    compute: str
    """Dtype of matrix products (autocast): fp32, bf16 or fp16."""
    weights: str
    """Dtype in which the model's weights are loaded."""
    reason: str
    device_type: str
    skips_overflows: bool = False
    """Whether fp16 losses are scaled, and steps that overflow skipped, outside the loop."""

    def autocast(self) -> AbstractContextManager[object]:
        """The context of every forward pass."""
        if self.compute == "fp32":
            return nullcontext()
        return torch.autocast(self.device_type, DTYPES[self.compute])

    @contextmanager
    def shared_casts(self) -> Iterator[None]:
        """Context for forward and backward passes of several micro-batches, in which each trained weight is cast once.

        Autocast keeps its casts until the outermost autocast context ends; this context itself casts nothing. Operators
        that autocast does not know get their casts from `cast_weight`. Passes without gradients must run outside of it:
        their casts have no gradient.
        """
        global _shared
        if self.compute == "fp32":
            yield
            return
        _shared = {}
        try:
            with torch.autocast(self.device_type, enabled=False):
                yield
        finally:
            _shared = None

    def scaler(self, device: Device, *, on_host: bool = False) -> torch.amp.GradScaler | None:
        """The gradient scaler for fp16; None for other types: bf16 has fp32's range.

        Args:
            on_host: gradients are copied to host memory before they are unscaled.
        """
        return device.gradient_scaler(on_host=on_host) if self.compute == "fp16" else None


def in_autocast_type(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`tensors`, any shape, in autocast's dtype for matrix products, for operators that autocast does not know.

    The inputs of one operator may otherwise have different dtypes: in a model with fp32 weights, rotated queries and
    keys are fp32 and values are bf16.
    """
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    return tuple(cast_weight(tensor, torch.get_autocast_dtype(kind)) for tensor in tensors)


def cast_weight(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`weight`, any shape, in `dtype`; in `shared_casts` a trained weight is cast once, as under autocast."""
    is_kept = _shared is not None and weight.is_leaf and weight.requires_grad and torch.is_grad_enabled()
    if _shared is None or not is_kept or weight.dtype == dtype or torch.compiler.is_compiling():
        return weight.to(dtype)
    key = id(weight), dtype
    if key not in _shared:
        _shared[key] = weight.to(dtype)
    return _shared[key]


def choose_precision(recipe: Recipe, device: Device) -> Precision:
    """Resolve `auto`.

    Raises:
        MachineError: the device does not support the dtype in the recipe.
        RecipeError: the dtypes in the recipe cannot be combined.
    """
    compute = recipe.precision
    reason = "as asked"
    if compute == "auto":
        compute = device.best_precision()
        reason = f"the best that {device.name} has"
    elif compute == "fp16" and not device.supports_fp16:
        raise MachineError(
            f"{device.name} ({device.kind}) does not train in fp16",
            code="fp16-unsupported",
            remedy="use precision: bf16 or fp32",
        )
    elif compute == "bf16" and not device.computes_bf16:
        raise MachineError(f"{device.name} has no bf16", code="bf16-unsupported", remedy="use precision: fp16 or fp32")
    weights = recipe.model.dtype
    if weights == "auto":
        # Trained weights are fp32: at small learning rates a bf16 weight does not change. Frozen weights need no more
        # precision than their products have; their adapters are fp32 in any case.
        weights = compute if recipe.method.adapter is not None else "fp32"
    adapter = recipe.method.adapter
    if adapter is not None and adapter.modules_to_save and compute == "fp32" and weights != "fp32":
        raise RecipeError(
            f"method.{recipe.method.tuner}.modules_to_save are trained in fp32, which precision: fp32 cannot combine "
            f"with weights of model.dtype: {weights}",
            code="mixed-weight-types",
            remedy="set model.dtype: auto, or precision: bf16",
        )
    return Precision(compute, weights, reason, device.torch_device.type)


class PromotingLayerNorm(nn.LayerNorm):
    """Layer normalisation for inputs of a wider dtype than its weights: in fp32, as on CUDA and NPU under autocast.

    On CPU torch raises for them. They occur if a fully trained fp32 embedding feeds frozen bf16 blocks, and if FSDP
    gathers the weights of a block in bf16 while the residual stream is fp32.
    """

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Normalise `hidden`, (..., features); on CPU the result has the same dtype."""
        weight, bias = (_widened(each, hidden.dtype) for each in (self.weight, self.bias))
        return nn.functional.layer_norm(hidden, self.normalized_shape, weight, bias, self.eps)


def _widened(vector: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """`vector`, any shape, in the wider of its own dtype and `dtype`."""
    return None if vector is None else vector.to(torch.promote_types(vector.dtype, dtype))


def promote_layer_norms(model: nn.Module) -> None:
    """Make the plain layer normalisations in `model` accept inputs of a wider dtype than their weights."""
    for module in model.modules():
        if type(module) is nn.LayerNorm:
            module.__class__ = PromotingLayerNorm


def export_dtype(recipe: Recipe, config: Any) -> torch.dtype:
    """Dtype of the exported weights: for a base model that of its files, for adapters that of training."""
    if recipe.method.adapter is not None:
        # As PEFT saves them: they are small, and rounding to bf16 may exceed their effect.
        return torch.float32
    if recipe.model.dtype != "auto":
        return DTYPES[recipe.model.dtype]
    source = getattr(config, "dtype", None)
    if recipe.model.init == "random" or source not in DTYPES.values():
        return torch.float32
    assert isinstance(source, torch.dtype)
    return source
