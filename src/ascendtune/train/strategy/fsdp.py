"""Fully sharded data parallel (FSDP2): weights, gradients and optimizer state are sharded among the ranks.

Each decoder block is a group: its weights are gathered when it is computed, forward and backward, and freed afterwards.
Parameters outside the blocks (final norm, head, tied embeddings) belong to the root module: it is gathered while the
objective runs, so the loss may use the head's weight as if it were not sharded. Untied embeddings are a group of their
own. If blocks are gathered in a narrower dtype than they are stored in, so are a block's norms, and vectors that belong
directly to its other modules (attention sinks, decays of a recurrence); autocast does not round them either.

With several copies of the model (HSDP) each copy is sharded; gradients are summed within a copy, then over copies.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.torch_version import TorchVersion

from ascendtune.core.errors import MachineError, RecipeError
from ascendtune.machine.peers import require_own_peers
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.deferred_weights import nothing_deferred
from ascendtune.train.optimizer import is_vector, states_per_parameter
from ascendtune.train.precision import DTYPES, Precision
from ascendtune.train.strategy.base import COMFORTABLE, TIMEOUT, GroupStrategy, MakeOptimizer, RootModule, node_rank
from ascendtune.train.strategy.expert_use import ExpertUses, give_zeros_to_unused
from ascendtune.train.tuner.freeze import decoder_blocks
from ascendtune.train.tuner.mixtures import find_mixtures, listed_experts

_FROZEN_TYPES_MAY_DIFFER = TorchVersion(torch.__version__) >= "2.8"
"""Older versions need one dtype for all weights that are gathered together, including frozen ones."""


class FsdpStrategy(GroupStrategy):
    """Gradients are sharded between micro-batches, unless `reduces_once`: then each rank keeps full ones."""

    name = "fsdp"
    shards_weights = True
    is_sharded = True
    reduces_once = False
    """Whether each rank adds up full gradients of a step's micro-batches and reduces them after the last one."""
    _is_last_batch = True
    """Whether the next backward pass is the last one of its step."""

    def __init__(self, device: Device, recipe: Recipe, reason: str = "as asked") -> None:
        super().__init__(device, recipe, reason)
        if device.kind == "cpu":
            self._require_means()
        self.updates_on_device = not recipe.parallel.fsdp.offload
        nodes = self.gather(node_rank())
        self.shards = recipe.parallel.fsdp.shards(ranks=self.world_size, nodes=len(set(nodes)))
        require_copies_on_nodes(nodes, self.shards)
        if self.shards < self.world_size:
            self.reason += f"; {self.world_size // self.shards} copies of the model, each divided among {self.shards}"

    def _require_means(self) -> None:
        """Raise if ranks would get the sum of gradients instead of their mean, as from Gloo of torch 2.6 to 2.8."""
        mean = torch.empty(1, device=self.device.torch_device)
        # torch 2.13 has a new name for it, and warns about the old one.
        reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        reduce_scatter(mean, mean.new_ones(self.world_size), op=dist.ReduceOp.AVG)
        # FSDP of torch 2.6 calls this method of streams, and those of its CPU do not have it.
        records_events = hasattr(torch.get_device_module(mean.device).Stream, "record_event")
        # A sum is at least two. NCCL multiplies by 1 / ranks before it sums: its mean over ten ranks is 1.0000001.
        if not 0.5 < float(mean) < 1.5 or not records_events:
            raise MachineError(
                f"torch {torch.__version__} cannot train with fsdp on {self.device.kind}",
                code="package-too-old",
                remedy="install torch 2.11 or newer, or set parallel.strategy: ddp",
            )

    def shard(
        self, root: RootModule, precision: Precision, fill: Callable[[nn.Module], None] = nothing_deferred
    ) -> None:
        # The same on all ranks, even if their devices have unequal memory: they must reduce gradients equally often.
        self.reduces_once = self.agree(reduces_once(root, self.recipe, self.device, shards=self.shards))
        if self.reduces_once:
            self.reason += "; gradients are reduced once a step"
        self._mesh = self._make_mesh()
        self._shard_group = self._mesh.get_group(self._mesh.ndim - 1)
        self._divide(root, precision, fill)
        self._uses = ExpertUses(listed_experts(root.model))
        if find_mixtures(root.model):
            give_zeros_to_unused(root, is_needed=bool(self._uses.trained))

    def shard_frozen(self, root: RootModule, precision: Precision, fill: Callable[[nn.Module], None]) -> None:
        self._divide(root, precision, fill)

    def _divide(self, root: RootModule, precision: Precision, fill: Callable[[nn.Module], None]) -> None:
        options: dict[str, Any] = {"mesh": self._mesh, "offload_policy": self._offload_policy()}
        section = self.recipe.parallel
        experts = listed_experts(root.model)
        reduced = None if section.reduce_dtype == "fp32" else DTYPES[section.reduce_dtype]
        blocks, policy = blocks_of(root), _policy(precision, reduced)
        vectors = {block: _wide_vectors(block, policy, experts) for block in blocks}
        owners: dict[nn.Module, list[Any]] = {}
        unrounded = {"reshard_after_forward": False, "mp_policy": _storage_policy(reduced), **options}
        for block in blocks:
            fill(block)
            _unify_dtypes(block, ())
            if vectors[block]:
                fully_shard(vectors[block], **unrounded)
            wide = _owners_of_wide_vectors(block, policy, experts)
            ignored = _ignoring({each for own in wide.values() for each in own})
            fully_shard(block, reshard_after_forward=section.fsdp.reshard, mp_policy=policy, **ignored, **options)
            # After the block: a group excludes modules that are sharded already.
            for owner, own in wide.items():
                fully_shard(owner, **_ignoring({*owner.parameters()} - own), **unrounded)
            owners[block] = list(wide)
            if wide:
                block.register_forward_pre_hook(partial(_gather, owners[block]))
        # Not in the compute dtype: embeddings are looked up in the dtype that they are stored in, as without FSDP.
        options["mp_policy"] = _storage_policy(reduced)
        separate = _separate_embeddings(root, blocks)
        for embeddings in separate:
            fill(embeddings)
            divided = fully_shard(embeddings, reshard_after_forward=True, **options)
            # The gradient of an embedding does not depend on its weights; that of a norm in the same module (Inkling)
            # does.
            divided.set_unshard_in_backward(len(list(embeddings.parameters())) > 1)
        fill(root)
        _unify_dtypes(root, [*blocks, *separate])
        fully_shard(root, reshard_after_forward=False, **options)
        root.register_forward_hook(_reshard_after_inference)
        if self.device.runs_asynchronously:
            # A host that is behind gathers the next block, with its vectors, while the device computes this one;
            # otherwise the vectors would wait for the block after it. In the backward pass torch prefetches by itself.
            for block, following in pairwise(blocks):
                assert isinstance(block, FSDPModule)
                # Any module of a group represents it.
                groups: list[Any] = [following, *vectors[following][:1], *owners[following]]
                block.set_modules_to_forward_prefetch(groups)

    @contextmanager
    def no_sync(self, module: nn.Module) -> Iterator[None]:
        assert isinstance(module, FSDPModule)
        self._is_last_batch = False
        if self.reduces_once:
            module.set_requires_gradient_sync(False)
            yield
            module.set_requires_gradient_sync(True)
        elif self.shards < self.world_size and self.recipe.parallel.reduce_dtype == "fp32":
            # All-reduce over copies waits for the last micro-batch. torch accumulates meanwhile in the reduce dtype.
            module.set_requires_all_reduce(False)
            yield
            module.set_requires_all_reduce(True)
        else:
            yield
        self._is_last_batch = True

    def prepare(
        self, root: RootModule, precision: Precision, make_optimizer: MakeOptimizer
    ) -> tuple[nn.Module, Optimizer]:
        # The model has been tried since it was sharded: forget the experts that were used then.
        self._uses.called.clear()
        return super().prepare(root, precision, make_optimizer)

    def backward(self, module: nn.Module, loss: torch.Tensor) -> None:
        loss.backward()
        if self._uses.trained and self._is_last_batch:
            self._uses.forget_zeros(self.all_reduce)

    def grad_norm(self, module: nn.Module, parameters: list[nn.Parameter]) -> torch.Tensor:
        # Each of several copies of the model has the full gradient.
        squares = super().grad_norm(module, parameters).to(self.device.torch_device).square()
        dist.all_reduce(squares, group=self._shard_group)
        return squares.sqrt()

    def full_param(self, parameter: nn.Parameter) -> torch.Tensor:
        assert isinstance(parameter, DTensor)
        return parameter.full_tensor().detach()

    def full_gradient(self, parameter: nn.Parameter) -> torch.Tensor | None:
        gradient = parameter.grad
        return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient

    def _make_mesh(self) -> DeviceMesh:
        """The device mesh: (shards,), or (copies, shards), where consecutive ranks have one copy."""
        if self.shards == self.world_size:
            return init_device_mesh(self.device.kind, (self.world_size,))
        ranks = torch.arange(self.world_size).view(-1, self.shards)
        # init_device_mesh is not used: on CUDA it splits the groups off that of all ranks. In torch 2.6 and 2.7 these
        # lack Gloo, which offloaded weights need, and 2.8 splits no group with two backends. They also have another
        # time-out.
        groups = [dist.new_subgroups_by_enumeration(lines.tolist(), timeout=TIMEOUT)[0] for lines in (ranks.t(), ranks)]
        require_own_peers()
        return DeviceMesh.from_group(groups, self.device.kind, ranks, mesh_dim_names=("replicate", "shard"))

    def _offload_policy(self) -> OffloadPolicy:
        if not self.recipe.parallel.fsdp.offload:
            return OffloadPolicy()
        return CPUOffloadPolicy(pin_memory=not self.device.shares_host_memory)


def require_copies_on_nodes(nodes: Sequence[str], shards: int) -> None:
    """Raise if a copy of the model shares a node with a part of another copy: it would be gathered over the network.

    Args:
        nodes: node of each rank, ordered by rank.
        shards: number of consecutive ranks that have one copy.

    Raises:
        RecipeError: there is such a copy.
    """
    sizes = Counter(nodes)
    for first in range(0, len(nodes), shards):
        members = Counter(nodes[first : first + shards])
        if len(members) > 1 and any(sizes[node] != count for node, count in members.items()):
            raise RecipeError(
                f"ranks {first} to {first + shards - 1}, which would share one copy of the model, are parts of nodes "
                f"{', '.join(sorted(members))}",
                code="replicas-across-nodes",
                remedy="set parallel.fsdp.replicas: nodes, and start the same number of ranks on each node",
            )


def reduces_once(module: nn.Module, recipe: Recipe, device: Device, *, shards: int) -> bool:
    """Whether each rank keeps full gradients of the trained weights of `module` until the last micro-batch.

    Args:
        module: not sharded yet; its weights may be on the meta device.
        shards: number of ranks that shard it.
    """
    section = recipe.parallel.fsdp
    if recipe.batch.accumulate == 1 or section.sync_each_batch is True:
        return False
    if section.sync_each_batch is False:
        return True
    if device.shares_host_memory or recipe.parallel.reduce_dtype != "fp32":
        return False
    parameters = list(module.parameters())
    trained = sum(each.numel() for each in parameters if each.requires_grad)
    states = 1 + states_per_parameter(recipe.optim)
    resting = sum(
        each.numel() * each.element_size() * (1 + states * each.requires_grad) for each in parameters
    ) // shards  # fmt: skip
    blocks = [sum(each.numel() * each.element_size() for each in block.parameters()) for block in blocks_of(module)]
    module_bytes = sum(each.numel() * each.element_size() for each in parameters)
    # Gathered at the same time: parameters outside the blocks, and two blocks.
    gathered = module_bytes - sum(blocks) + 2 * max(blocks, default=0)
    needed = 4 * trained + gathered + (0 if section.offload else resting)
    return needed <= COMFORTABLE * device.memory_total_bytes


def blocks_of(root: nn.Module) -> list[nn.Module]:
    """The repeated decoder blocks of the model in `root`, in order, not nested, and without shared weights.

    Their classes are those that transformers must not split over devices; if a model does not list any, the members of
    its longest list of modules. BERT lists its embeddings, too, whose table is tied to the head: a weight that is used
    elsewhere cannot be gathered for one block only.
    """
    classes = {name for module in root.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    candidates = [module for module in root.modules() if type(module).__name__ in classes]
    candidates = candidates or list(decoder_blocks(root)[1])
    inside = {below for block in candidates for below in block.modules() if below is not block}
    blocks = [block for block in candidates if block not in inside]
    in_blocks = {module for block in blocks for module in block.modules()}
    outside = {
        each for module in root.modules() if module not in in_blocks for each in module.parameters(recurse=False)
    }
    uses = Counter([*outside, *(each for block in blocks for each in block.parameters())])
    return [block for block in blocks if {uses[each] for each in block.parameters()} == {1}]


def _reshard_after_inference(root: nn.Module, _arguments: Any, _outcome: Any) -> None:
    """Shard the weights again after a forward pass without gradients: no backward pass would do it."""
    if not torch.is_grad_enabled():
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def _separate_embeddings(root: nn.Module, blocks: list[nn.Module]) -> list[nn.Module]:
    """Embeddings outside the blocks that share their weight with no other module, so they can be gathered alone."""
    in_blocks = {module for block in blocks for module in block.modules()}
    uses: Counter[torch.Tensor] = Counter(
        parameter for module in root.modules() for parameter in module.parameters(recurse=False)
    )
    return [
        module
        for module in root.modules()
        if isinstance(module, nn.Embedding) and module not in in_blocks and uses[module.weight] == 1
    ]


def _policy(precision: Precision, reduced: torch.dtype | None) -> MixedPrecisionPolicy:
    """Policy for groups that are gathered in autocast's dtype for matrix products.

    Args:
        reduced: dtype in which gradients are summed; fp32 for None.
    """
    if precision.compute == "fp32":
        return MixedPrecisionPolicy(reduce_dtype=reduced)
    return MixedPrecisionPolicy(
        param_dtype=DTYPES[precision.compute], reduce_dtype=reduced or torch.float32, cast_forward_inputs=False
    )


def _storage_policy(reduced: torch.dtype | None) -> MixedPrecisionPolicy:
    """Policy for groups that are gathered in the dtype that they are stored in."""
    return MixedPrecisionPolicy(reduce_dtype=reduced)


def _wide_vectors(block: nn.Module, policy: MixedPrecisionPolicy, experts: Sequence[nn.Module]) -> list[nn.Module]:
    """Modules with vectors only, such as norms, that `policy` would round but autocast does not.

    The rounding error of a norm's factor is the same for all tokens, so it does not average out in gradients. Modules
    in listed experts are excluded: a step may skip them, and a group waits for all of its modules.
    """
    left_out = {each for expert in experts for each in expert.modules()}
    modules = []
    for name, module in block.named_modules():
        parameters = list(module.named_parameters(prefix=name))
        is_leaf = bool(parameters) and not any(True for _ in module.children())
        # PEFT keeps the original of a module that is trained as a whole, and never calls it.
        if is_leaf and module not in left_out and "original_module" not in name.split("."):
            is_wide = policy.param_dtype is not None and all(each.dtype == torch.float32 for _, each in parameters)
            if is_wide and all(each.ndim < 2 or is_vector(path) for path, each in parameters):
                modules.append(module)
    return modules


def _owners_of_wide_vectors(
    block: nn.Module, policy: MixedPrecisionPolicy, experts: Sequence[nn.Module]
) -> dict[nn.Module, set[nn.Parameter]]:
    """Modules in `block` that have submodules and also own vectors that `policy` would round.

    The model's own code uses these vectors, which autocast leaves in fp32 (attention sinks, decays and steps of a
    recurrence). Matrices owned by such a module are included: autocast rounds those that are multiplied. Stacks of
    matrices are experts, and are excluded, as are the vectors of the block itself.
    """
    if policy.param_dtype is None or "ignored_params" not in inspect.signature(fully_shard).parameters:
        # Before torch 2.7 all parameters of a module must have one dtype.
        return {}
    left_out = {block} | {each for expert in experts for each in expert.modules()}
    owners = {}
    for module in block.modules():
        if module not in left_out and any(True for _ in module.children()):
            own = {each for each in module.parameters(recurse=False) if each.dtype == torch.float32}
            if own := {each for each in own if each.ndim <= 2 or each.numel() == max(each.shape)}:
                owners[module] = own
    return owners


def _ignoring(parameters: set[nn.Parameter]) -> dict[str, Any]:
    """The argument of `fully_shard`; empty if there is nothing to ignore, as older versions have no such argument."""
    return {"ignored_params": parameters} if parameters else {}


def _gather(owners: Sequence[Any], _block: nn.Module, _arguments: Any) -> None:
    """Gather the groups of `owners` before their block computes: some of them are never called (Gemma 3n's AltUp)."""
    for owner in owners:
        owner.unshard()


def _unify_dtypes(group: nn.Module, without: Iterable[nn.Module]) -> None:
    """Widen trained weights of `group`, except those of nested groups, to one dtype: FSDP sums their gradients as one.

    Frozen weights are left as they are if their dtypes may differ.
    """
    elsewhere = {parameter for module in without for parameter in module.parameters()}
    parameters = [
        each
        for each in group.parameters()
        if (each.requires_grad or not _FROZEN_TYPES_MAY_DIFFER) and each not in elsewhere
    ]
    if len({each.dtype for each in parameters}) > 1:
        for each in parameters:
            each.data = each.data.float()
