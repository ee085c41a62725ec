"""What one step of a run computes, moves and sends: plain values, which a device's speed turns into time. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ascendtune.train.flops import ModelFlops
from ascendtune.train.plan.offload import Offload


@dataclass(frozen=True)
class Transfer:
    """A collective, all of its calls."""

    name: str
    """all_reduce, all_gather or reduce_scatter."""
    calls: tuple[int, ...]
    """Bytes of each, as nccl-tests counts them: the larger of a rank's two buffers."""
    of_micro_batch: bool
    """Once for each micro-batch; else once a step."""
    in_forward: bool
    """Whether forward computation runs beside it, too; backward does in any case."""
    ranks: int | None = None
    """Of each of the groups that it runs in; None: all ranks are one group."""
    spread: bool = False
    """Whether the ranks of a group are apart: one of each copy of the model."""

    @property
    def size_bytes(self) -> int:
        """Of all calls together."""
        return sum(self.calls)

    def bus_bytes(self, ranks: int) -> float:
        """Bytes that each rank sends over its link (nccl-tests, doc/PERFORMANCE.md), in a job of `ranks`."""
        members = self.ranks or ranks
        share = (members - 1) / members
        return self.size_bytes * (2 * share if self.name == "all_reduce" else share)


@dataclass(frozen=True)
class Work:
    """Of one rank."""

    flops: ModelFlops
    transfers: tuple[Transfer, ...]
    updated_bytes: int
    """Read and written in the device's memory by clipping and the optimizer, each step."""
    checkpoint_bytes: int
    """Of a whole checkpoint, all ranks."""
    model_bytes: int
    """Of the exported model."""
    compute: str
    """bf16, fp16 or fp32."""
    model_type: str
    offload: Offload | None = None
    """What offloading moves; None where nothing is offloaded."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Work:
        transfers = tuple(Transfer(**{**each, "calls": tuple(each["calls"])}) for each in values["transfers"])
        offload = Offload(**values["offload"]) if values["offload"] else None
        return cls(**{**values, "flops": ModelFlops.of(values["flops"]), "transfers": transfers, "offload": offload})


@dataclass(frozen=True)
class Steps:
    """The data of a run as its steps see them."""

    steps: int | None
    """Of the whole run; None where neither `optim.max_steps` nor the data says."""
    tokens: float
    """Of a step, all ranks, the mean; padding not counted."""
    labels: float
    lengths: Mapping[int, int]
    """Tokens of a document -> how many such documents, of some steps."""
    padding_ratio: float
    """Share of the computed positions that is padding."""
    first_epoch: float
    """Share of the steps that is in the first epoch."""
    per_epoch: int | None = None
    """Steps of an epoch, where the data are known."""
