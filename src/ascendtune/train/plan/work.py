"""The computation, memory traffic and communication of a step, in plain values, for time estimates. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ascendtune.train.flops import ModelFlops
from ascendtune.train.plan.offload import Offload


@dataclass(frozen=True)
class Transfer:
    """All calls of a collective."""

    name: str
    """all_reduce, all_gather or reduce_scatter."""
    calls: tuple[int, ...]
    """Bytes of each call, as nccl-tests counts them: the larger of a rank's two buffers."""
    of_micro_batch: bool
    """Whether it is called for each micro-batch; otherwise once a step."""
    in_forward: bool
    """Whether it overlaps with the forward pass, too; it always overlaps with the backward pass."""
    ranks: int | None = None
    """Size of the groups in which it runs; None: all ranks are one group."""
    spread: bool = False
    """Whether the ranks of a group are not consecutive: one of each copy of the model."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all calls together."""
        return sum(self.calls)

    def bus_bytes(self, ranks: int) -> float:
        """Bytes that each rank sends over its link (nccl-tests, doc/PERFORMANCE.md), in a job of `ranks`."""
        members = self.ranks or ranks
        share = (members - 1) / members
        return self.size_bytes * (2 * share if self.name == "all_reduce" else share)


@dataclass(frozen=True)
class Work:
    """Work of one rank."""

    flops: ModelFlops
    transfers: tuple[Transfer, ...]
    updated_bytes: int
    """Bytes that clipping and optimizer read and write in the device's memory, each step."""
    checkpoint_bytes: int
    """Bytes of a checkpoint, of all ranks together."""
    model_bytes: int
    """Bytes of the exported model."""
    compute: str
    """bf16, fp16 or fp32."""
    model_type: str
    offload: Offload | None = None
    """Traffic of offloading; None if nothing is offloaded."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Work:
        transfers = tuple(Transfer(**{**each, "calls": tuple(each["calls"])}) for each in values["transfers"])
        offload = Offload(**values["offload"]) if values["offload"] else None
        return cls(**{**values, "flops": ModelFlops.of(values["flops"]), "transfers": transfers, "offload": offload})


@dataclass(frozen=True)
class Steps:
    """The data of a run, averaged over its steps."""

    steps: int | None
    """Number of steps of the run; None if neither `optim.max_steps` nor the data determine it."""
    tokens: float
    """Mean tokens of a step, of all ranks, without padding."""
    labels: float
    lengths: Mapping[int, int]
    """Tokens of a document -> number of such documents, in a sample of steps."""
    padding_ratio: float
    """Share of padding in the computed positions."""
    first_epoch: float
    """Share of the steps that belong to the first epoch."""
    per_epoch: int | None = None
    """Number of steps of an epoch, if the data are known."""
