"""Request and result of an estimate: plain values, for a separate process. Free of torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ascendtune.core.units import format_bytes
from ascendtune.machine.vendor.find import vendor_of


class DocumentSize(NamedTuple):
    """A row of the data in a micro-batch."""

    tokens: int
    labels: int
    """Number of its tokens that count in the loss."""


@dataclass(frozen=True)
class Target:
    """The devices of a plan."""

    kind: str
    """cpu, cuda or npu."""
    name: str
    memory_bytes: int
    devices: int
    """Ranks of the job."""
    bf16: bool = True
    context_bytes: int = 0
    """Bytes used by driver, libraries and communication before the first tensor."""
    nodes: int = 1
    host_bytes: int | None = None
    """Host memory for each rank, in addition to the device's; None if unknown, or if the device shares it."""

    @property
    def is_host(self) -> bool:
        """Whether the ranks compute in host memory."""
        return not vendor_of(self.kind).is_accelerator


@dataclass(frozen=True)
class EstimateRequest:
    recipe: dict[str, Any]
    """From `Recipe.model_dump(mode="json")`."""
    model_directory: str
    target: Target
    vocabulary: int
    pad_id: int
    documents: tuple[DocumentSize, ...] | None = None
    """Documents of the largest micro-batch without padding; None if the data are unknown: then full rows."""
    padded_documents: tuple[DocumentSize, ...] | None = None
    """Documents of the largest micro-batch if the model does not isolate documents."""
    single: tuple[DocumentSize, ...] | None = None
    """Like `documents`, for micro-batches of one sequence and the same global batch."""
    padded_single: tuple[DocumentSize, ...] | None = None
    adapters: tuple[str, ...] = ()
    """Directories of the adapters to start from."""
    reference: str | None = None
    """Directory of the reference model, if it is another model."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EstimateRequest:
        values = json.loads(text)
        rows = {
            each: None if values[each] is None else tuple(DocumentSize(*row) for row in values[each])
            for each in ("documents", "padded_documents", "single", "padded_single")
        }
        return cls(**{**values, **rows, "target": Target(**values["target"]), "adapters": tuple(values["adapters"])})


@dataclass(frozen=True)
class Estimate:
    """Memory of one rank, in bytes."""

    expected: int
    """Peak of the tensors' bytes."""
    low: int
    high: int
    moment: str
    """Moment of the peak."""
    at_peak: dict[str, int]
    """Category -> bytes at that moment; their sum is `expected`."""
    moments: dict[str, int]
    """Moment -> its peak in bytes."""
    resting: int
    """Bytes between two steps."""
    host: int
    """Bytes in host memory, in addition to the device's: offloaded state and the copy for writing a checkpoint, or a
    model that is made whole before it is sharded or moved (random weights, new layers)."""
    context: int
    """Bytes used before the first tensor."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Results of the recipe's `auto`, parameters, tokens of a micro-batch, and the method of the estimate."""
    notes: tuple[str, ...] = ()

    def fits(self, memory_bytes: int) -> bool | None:
        """Whether the run fits; None if the limit lies between the low and the high estimate."""
        if self.high + self.context <= memory_bytes:
            return True
        return False if self.low + self.context > memory_bytes else None

    def host_shortage(self, target: Target) -> str | None:
        """A warning if host memory is too small; None if it suffices."""
        if target.host_bytes is None or self.host <= target.host_bytes:
            return None
        return (
            f"each rank needs {format_bytes(self.host)} of host memory, and this machine has "
            f"{format_bytes(target.host_bytes)} for each: the kernel may end the run"
        )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Estimate:
        return cls(**{**values, "notes": tuple(values["notes"])})
