"""The plan of a merge: every tensor of the merged model, its source and its changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ascendtune.hub.oft_adapter import Rotation
from ascendtune.hub.peft_adapter import Adapter, ExpertLora, LowRank
from ascendtune.hub.safetensors_header import SafetensorsHeader, bytes_of
from ascendtune.merge.source import Base

if TYPE_CHECKING:
    from ascendtune.merge.layout import Layout, Piece

Progress = Callable[[str, int, int], None]
"""Called with (current work, units done, units in all)."""


@dataclass(frozen=True)
class ExpertAddition:
    """The change of one tensor of the files by an adapter of stacked experts."""

    adapter: Adapter
    expert_lora: ExpertLora
    piece: Piece
    rank: int
    scaling: float
    swapped: bool
    """Whether the parameter is (experts, out, in); else (experts, in, out)."""


@dataclass(frozen=True)
class Addition:
    """The change of a tensor of the files by an adapter of one module."""

    adapter: Adapter
    low_rank: LowRank
    rows: tuple[int, int] | None = None
    """First row and last row + 1 of the changed part; None: the whole tensor."""
    is_transposed: bool = False
    """Whether the tensor is (in, out), as an embedding's and GPT-2's Conv1D."""


@dataclass(frozen=True)
class InputRotation:
    """The rotation of the inputs of one module, for a tensor of the files."""

    adapter: Adapter
    rotation: Rotation
    rows: tuple[int, int] | None = None
    """First row and last row + 1 of the module's part; None: the whole tensor."""


@dataclass(frozen=True)
class Output:
    """A tensor of the merged model."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: tuple[SafetensorsHeader, str]
    """The source, a file and a name: the base's, or the adapter's for a whole weight."""
    additions: tuple[Addition, ...] = ()
    biases: tuple[tuple[Adapter, LowRank], ...] = ()
    """LoRA's own biases, for the bias of a module."""

    experts: tuple[ExpertAddition, ...] = ()
    rotations: tuple[InputRotation, ...] = ()

    @property
    def size(self) -> int:
        return bytes_of(self.dtype, self.shape) if self.is_changed else self.source[0].tensors[self.source[1]].size

    @property
    def is_changed(self) -> bool:
        """Whether it must be computed; otherwise bytes are copied."""
        source = self.source[0].tensors[self.source[1]]
        return bool(self.additions or self.biases or self.experts or self.rotations) or source.dtype != self.dtype


@dataclass(frozen=True)
class MergePlan:
    """The files of the merged model, and notes on them."""

    base: Base
    adapters: list[Adapter]
    shards: dict[str, list[Output]]
    """File -> tensors in the order in which they are written."""
    config: dict[str, Any]
    notes: list[str]
    """Notes for the user, one sentence each."""
    layout: Layout | None = None
    """Needed if a name of the model is not in its files."""

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(each.size for shard in self.shards.values() for each in shard)

    @property
    def changed(self) -> int:
        """Number of tensors that differ from the base's."""
        outputs = [each for shard in self.shards.values() for each in shard]
        return sum(each.is_changed or each.source[0].path.parent != self.base.directory for each in outputs)
