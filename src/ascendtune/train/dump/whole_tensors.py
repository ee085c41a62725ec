"""Full gradients and parameters of a model trained by another loop: on one device, with DDP, FSDP2 or DeepSpeed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ascendtune.core.errors import InputError

_ENGINE = ("deepspeed.runtime.engine", "DeepSpeedEngine")
_FLATTENING = ("deepspeed.runtime.pipe.", "torch.distributed.fsdp.fully_sharded_data_parallel")
"""Prefixes of modules whose classes flatten or distribute parameters, so they cannot be read by name."""


class WholeTensors:
    """Full tensors of a model on one device, in DDP, or sharded by `fully_shard`.

    Methods that return tensors must be called on every rank: sharded tensors are gathered.
    """

    loss_scale = 1.0
    """Factor by which losses and gradients are scaled, except by a GradScaler."""

    def is_divided(self, parameter: nn.Parameter) -> bool:
        """Whether each rank has a shard: then only rank 0 records the full tensor."""
        return isinstance(parameter, DTensor)

    def parameter(self, parameter: nn.Parameter) -> torch.Tensor:
        """The full value of a parameter, any shape."""
        return _whole(parameter.detach())

    def gradient(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """The full gradient of a parameter, any shape, before clipping."""
        return None if parameter.grad is None else _whole(parameter.grad)


class EngineTensors(WholeTensors):
    """Full tensors of DeepSpeed's engine, with ZeRO 0 to 3; in fp32 if the optimizer has fp32 weights."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @property
    def loss_scale(self) -> float:  # type: ignore[override]
        return float(getattr(self._engine.optimizer, "loss_scale", None) or 1.0)

    def is_divided(self, parameter: nn.Parameter) -> bool:
        return _is_linked(parameter)

    def parameter(self, parameter: nn.Parameter) -> torch.Tensor:
        if not _is_linked(parameter):
            return parameter.detach().clone()
        import deepspeed
        from deepspeed.utils import safe_get_full_fp32_param

        if parameter.requires_grad:
            whole: torch.Tensor = safe_get_full_fp32_param(parameter)
            return whole.detach().clone()
        with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
            return parameter.detach().clone()

    def gradient(self, parameter: nn.Parameter) -> torch.Tensor | None:
        gradient = parameter.grad
        if _is_linked(parameter):
            from deepspeed.utils import safe_get_full_grad

            gradient = safe_get_full_grad(parameter)
        return gradient if gradient is None or self.loss_scale == 1 else gradient.float() / self.loss_scale


def is_engine(model: nn.Module) -> bool:
    """Whether `model` is DeepSpeed's engine, which makes the updates itself."""
    return any((each.__module__, each.__name__) == _ENGINE for each in type(model).__mro__)


def whole_tensors_of(model: nn.Module) -> WholeTensors:
    """The reader of `model`'s gradients and parameters.

    Raises:
        InputError: they are in flat buffers, or the model belongs to an engine that should have been passed.
    """
    kinds = {type(each).__name__ for each in model.modules() if type(each).__module__.startswith(_FLATTENING)}
    if kinds:
        raise InputError(
            f"the model is a {min(kinds)}, which keeps parameters and gradients in flat buffers; it cannot be recorded",
            code="model-not-recordable",
            remedy="record the script with DDP, FSDP2 (fully_shard), DeepSpeed ZeRO or one device, or compare its log "
            "with `ascendtune align`",
        )
    if is_engine(model):
        _require_order(model)
        return EngineTensors(model)
    if any(_is_linked(each) for each in model.parameters()):
        raise InputError(
            "DeepSpeed trains this model: its engine has the gradients and makes the updates",
            code="model-not-recordable",
            remedy="give the engine that deepspeed.initialize returned: record(engine)",
        )
    return WholeTensors()


def _require_order(engine: Any) -> None:
    """Raise InputError if DeepSpeed (0.19) would return other weights than the requested ones, on several ranks."""
    orders = getattr(getattr(engine, "optimizer", None), "round_robin_bit16_indices", ())
    if any(list(order) != sorted(order) for order in orders):
        raise InputError(
            "DeepSpeed reorders weights with round_robin_gradients, and cannot read one by its name",
            code="model-not-recordable",
            remedy='record with "round_robin_gradients": false, which trains the same',
        )


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _is_linked(parameter: nn.Parameter) -> bool:
    """Whether DeepSpeed stores gradient, fp32 weights or shards of `parameter` elsewhere; the same on every rank."""
    return hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping")
