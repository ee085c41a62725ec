"""Fully sharded data parallel (FSDP2): weights, gradients and optimizer state are divided among the ranks.

Each decoder block is a group of its own: its weights are gathered when it is computed, forward and backward, and let go
after that. What lies outside the blocks (final norm, head, tied embeddings) belongs to the root module: it is
gathered as long as the objective runs, so the loss may use the head's weight as if nothing were divided. Embeddings
that are not tied are a group of their own: they are not used after the look-up of tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from ascendtune.train.deferred_weights import nothing_deferred
from ascendtune.train.precision import DTYPES, Precision
from ascendtune.train.strategy.base import GroupStrategy, RootModule
from ascendtune.train.tuner.freeze import decoder_blocks


class FsdpStrategy(GroupStrategy):
    """`no_sync` does nothing here: gradients that wait for the last micro-batch would have to wait undivided."""

    name = "fsdp"
    divides_weights = True
    is_sharded = True

    def shard(
        self, root: RootModule, precision: Precision, fill: Callable[[nn.Module], None] = nothing_deferred
    ) -> None:
        options: dict[str, Any] = {
            "mesh": self._mesh(),
            "offload_policy": self._offload_policy(),
        }
        reshard = self.recipe.parallel.fsdp.reshard
        blocks = blocks_of(root)
        for block in blocks:
            fill(block)
            _unify_dtypes(block, ())
            fully_shard(block, reshard_after_forward=reshard, mp_policy=_policy(precision), **options)
        for embeddings in _separate_embeddings(root, blocks):
            fill(embeddings)
            # Their gradient does not depend on their weights.
            fully_shard(embeddings, reshard_after_forward=True, **options).set_unshard_in_backward(False)
        fill(root)
        _unify_dtypes(root, blocks)
        # Not in the compute type: embeddings are looked up in the type that they are held in, as without FSDP.
        fully_shard(root, reshard_after_forward=False, **options)
        root.register_forward_hook(_reshard_after_inference)

    def grad_norm(self, module: nn.Module, parameters: list[nn.Parameter]) -> torch.Tensor:
        norm = super().grad_norm(module, parameters)
        return (norm.full_tensor() if isinstance(norm, DTensor) else norm).to(self.device.torch_device)

    def full_param(self, parameter: nn.Parameter) -> torch.Tensor:
        assert isinstance(parameter, DTensor)
        return parameter.full_tensor().detach()

    def full_gradient(self, parameter: nn.Parameter) -> torch.Tensor | None:
        gradient = parameter.grad
        return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient

    def _mesh(self) -> DeviceMesh:
        return init_device_mesh(self.device.kind, (self.world_size,))

    def _offload_policy(self) -> OffloadPolicy:
        if not self.recipe.parallel.fsdp.offload:
            return OffloadPolicy()
        return CPUOffloadPolicy(pin_memory=not self.device.shares_host_memory)


def blocks_of(root: nn.Module) -> list[nn.Module]:
    """The repeated decoder blocks of the model in `root`, in order, none inside another.

    Their classes are those that transformers must not split over devices; where a model does not name any, the members
    of its longest list of modules.
    """
    classes = {name for module in root.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    found = [module for module in root.modules() if type(module).__name__ in classes]
    found = found or list(decoder_blocks(root)[1])
    inside = {below for block in found for below in block.modules() if below is not block}
    return [block for block in found if block not in inside and any(True for _ in block.parameters())]


def _reshard_after_inference(root: nn.Module, _arguments: Any, _outcome: Any) -> None:
    """Divide again what the backward pass would have divided, where none follows."""
    if not torch.is_grad_enabled():
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def _separate_embeddings(root: nn.Module, blocks: list[nn.Module]) -> list[nn.Module]:
    """Tables outside the blocks that share their weight with no other module, so that they can be gathered alone."""
    in_blocks = {module for block in blocks for module in block.modules()}
    uses: Counter[torch.Tensor] = Counter(
        parameter for module in root.modules() for parameter in module.parameters(recurse=False)
    )
    return [
        module
        for module in root.modules()
        if isinstance(module, nn.Embedding) and module not in in_blocks and uses[module.weight] == 1
    ]


def _policy(precision: Precision) -> MixedPrecisionPolicy:
    """Gathered in the type that autocast would cast to for the matrix products; gradients are summed in fp32."""
    if precision.compute == "fp32":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=DTYPES[precision.compute], reduce_dtype=torch.float32, cast_forward_inputs=False
    )


def _unify_dtypes(group: nn.Module, without: Iterable[nn.Module]) -> None:
    """Widen trained weights of `group` to one type: FSDP sums their gradients as one tensor. Frozen ones stay."""
    elsewhere = {parameter for module in without for parameter in module.parameters()}
    trained = [each for each in group.parameters() if each.requires_grad and each not in elsewhere]
    if len({each.dtype for each in trained}) > 1:
        for each in trained:
            each.data = each.data.float()
