"""What is planned, and what comes out: plain values, for a process of its own. No torch."""

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
    """Tokens of it that the loss counts."""


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
    """Taken by driver, libraries and communication before the first tensor."""
    nodes: int = 1
    host_bytes: int | None = None
    """Host memory for each rank beside the device's; None where it is not known, or where the device shares it."""

    @property
    def is_host(self) -> bool:
        """Whether the ranks compute in the memory of the host."""
        return not vendor_of(self.kind).is_accelerator


@dataclass(frozen=True)
class EstimateRequest:
    recipe: dict[str, Any]
    """Of `Recipe.model_dump(mode="json")`."""
    model_directory: str
    target: Target
    vocabulary: int
    pad_id: int
    documents: tuple[DocumentSize, ...] | None = None
    """Of the largest micro-batch without padding; None where the data are not known: full rows."""
    padded_documents: tuple[DocumentSize, ...] | None = None
    """Of the largest micro-batch where the model does not keep documents apart."""
    single: tuple[DocumentSize, ...] | None = None
    """Like `documents`, of micro-batches of one sequence and the same global batch."""
    padded_single: tuple[DocumentSize, ...] | None = None
    adapters: tuple[str, ...] = ()
    """Directories of those that training starts from."""
    reference: str | None = None
    """Directory of another model that answers before the first step."""

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
    """Bytes on one rank."""

    expected: int
    """The most that tensors take at once."""
    low: int
    high: int
    moment: str
    """Of the peak."""
    at_peak: dict[str, int]
    """Category -> bytes at that moment; their sum is `expected`."""
    moments: dict[str, int]
    """Moment -> most bytes at once."""
    resting: int
    """Between two steps."""
    host: int
    """In host memory, beside the device's: what is offloaded, and the copy that a checkpoint is written from."""
    context: int
    """Taken before the first tensor."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the recipe's `auto` came to, parameters, tokens of a micro-batch, and how the estimate was made."""
    notes: tuple[str, ...] = ()

    def fits(self, memory_bytes: int) -> bool | None:
        """Whether it fits; None where that lies between the low and the high estimate."""
        if self.high + self.context <= memory_bytes:
            return True
        return False if self.low + self.context > memory_bytes else None

    def host_shortage(self, target: Target) -> str | None:
        """What to say where host memory is too small for what is kept there; None where it is not."""
        if target.host_bytes is None or self.host <= target.host_bytes:
            return None
        return (
            f"each rank needs {format_bytes(self.host)} of host memory, and this machine has "
            f"{format_bytes(target.host_bytes)} for each: the kernel may end the run"
        )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Estimate:
        return cls(**{**values, "notes": tuple(values["notes"])})
