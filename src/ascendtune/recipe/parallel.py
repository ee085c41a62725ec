"""The `parallel` section of a recipe: how training is distributed over devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from ascendtune.core.config import Contradiction, Section, other_names
from ascendtune.core.errors import RecipeError

_OTHER_NAMES = {
    "fsdp1": "use parallel.strategy: fsdp, which is FSDP2",
    "fsdp2": "use parallel.strategy: fsdp",
    **{
        f"zero{stage}": f"use parallel.strategy: deepspeed with parallel.deepspeed.stage: {stage}" for stage in range(4)
    },
    "tp": "tensor parallelism is not supported in this version; use parallel.strategy: fsdp",
    "megatron": "Megatron is not supported in this version; use parallel.strategy: fsdp",
}

STAGE_0_ROUNDS = "ZeRO stage 0 shards nothing, and in bf16 or fp16 it would round the weights at every step"
STAGE_0_REMEDY = "use parallel.strategy: ddp, or ZeRO stage 1"


class FsdpSection(Section):
    """Fully sharded data parallel (FSDP2): weights, gradients and optimizer state are sharded across ranks."""

    reshard: bool = True
    """Free a layer's gathered weights after its forward pass: less memory, one more all-gather in the backward pass."""
    offload: bool = False
    """Keep weights, gradients and optimizer state in host memory; slow, needs least device memory."""
    replicas: Literal["nodes"] | Annotated[int, Field(ge=1)] = 1
    """Copies of the sharded model (HSDP): weights are gathered within a copy, gradients are summed over all; `nodes`:
    one copy on each node."""
    sync_each_batch: Literal["auto"] | bool = "auto"
    """Reduce gradients after each micro-batch; `false`: once a step, each device holds whole gradients until then;
    `auto`: once a step on accelerators whose memory allows it."""

    def copies(self, nodes: int) -> int:
        """Copies of the model in a job on `nodes` nodes."""
        return nodes if self.replicas == "nodes" else self.replicas

    def shards(self, *, ranks: int, nodes: int) -> int:
        """Number of ranks that together keep one copy of the model.

        Raises:
            RecipeError: the ranks cannot be divided into equal copies, or no weight would be sharded.
        """
        copies = self.copies(nodes)
        if ranks % copies:
            raise RecipeError(
                f"parallel.fsdp.replicas is {copies}, and {ranks} ranks cannot be divided into {copies} equal groups",
                code="replicas-unequal",
                remedy=f"use a number that divides {ranks}, or another number of devices",
            )
        if copies == ranks > 1:
            raise RecipeError(
                f"parallel.fsdp.replicas is {copies}: each of the {ranks} ranks would have a whole copy of the model",
                code="replicas-not-sharded",
                remedy="use parallel.strategy: ddp, or fewer replicas",
            )
        return ranks // copies


class DeepSpeedSection(Section):
    """DeepSpeed ZeRO: the state that is sharded across ranks, and the state that is offloaded."""

    stage: int = Field(default=2, ge=0, le=3)
    """0 nothing, 1 optimizer state, 2 gradients too, 3 weights too."""
    offload_optimizer: Literal["none", "cpu", "nvme"] = "none"
    """Device of the optimizer state (`nvme`: stage 3, and the headers of libaio)."""
    offload_param: Literal["none", "cpu", "nvme"] = "none"
    """Device of the weights (stage 3; `nvme`: as above; on a CPU in bf16 only)."""
    nvme_path: str | None = None
    """Directory on a fast local disk, for `nvme`; the run removes its files there when it ends."""
    config: str | None = None
    """A DeepSpeed JSON file instead of these keys; its `auto` values are filled in from the recipe."""

    def contradictions(self) -> Iterator[Contradiction]:
        if self.config is not None:
            for key in ("stage", "offload_optimizer", "offload_param", "nvme_path"):
                if getattr(self, key) != type(self).model_fields[key].default:
                    yield Contradiction(
                        f"parallel.deepspeed.{key} and parallel.deepspeed.config contradict each other: "
                        "the JSON file sets it",
                        code="conflicting-keys",
                        remedy=f"remove {key}, or config",
                        path=("parallel", "deepspeed", key),
                    )
        if fault := offload_fault("parallel.deepspeed", self.stage, self.offload_optimizer, self.offload_param):
            yield fault
        if "nvme" in (self.offload_optimizer, self.offload_param) and not self.nvme_path:
            yield Contradiction(
                "offloading to nvme needs a directory",
                code="recipe-key-missing",
                remedy="set parallel.deepspeed.nvme_path",
                path=("parallel", "deepspeed"),
            )


def offload_fault(keys: str, stage: int, offload_optimizer: str, offload_param: str) -> Contradiction | None:
    """The contradiction between a ZeRO stage and its offloading, or None.

    Args:
        keys: prefix of the keys: `parallel.deepspeed` in a recipe, `zero_optimization` in a DeepSpeed JSON.
    """

    def fault(key: str, why: str, remedy: str) -> Contradiction:
        return Contradiction(f"{keys}.{key}{why}", code="conflicting-keys", remedy=remedy, path=(*keys.split("."), key))

    if offload_param != "none" and stage != 3:
        return fault(
            "offload_param",
            " needs stage 3: below it every rank has all weights",
            f"set {keys}.stage: 3, or offload_optimizer alone",
        )
    if offload_optimizer != "none" and stage == 0:
        return fault("offload_optimizer", " needs stage 1 or more", f"set {keys}.stage: 2")
    if offload_optimizer == "nvme" and stage != 3:
        return fault(
            "offload_optimizer",
            ": nvme needs stage 3: before that DeepSpeed keeps the state in host memory, and writes nothing to disk",
            f"set {keys}.stage: 3, or offload_optimizer: cpu",
        )
    return None


class ParallelSection(Section):
    """Distribution of the training over devices."""

    strategy: Annotated[Literal["auto", "ddp", "fsdp", "deepspeed"], other_names(_OTHER_NAMES)] = "auto"
    """`ddp`: a complete model on every device; `fsdp`, `deepspeed`: sharded; `auto` chooses by size (see run.json)."""
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    """Type in which `ddp` and `fsdp` sum gradients over ranks; `bf16` halves the bytes and keeps 8 significant bits."""
    fsdp: FsdpSection = FsdpSection()
    deepspeed: DeepSpeedSection = DeepSpeedSection()
