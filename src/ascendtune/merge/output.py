"""A tensor of the merged model, before it is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ascendtune.hub.lora_adapter import Adapter, LowRank, Stack
from ascendtune.hub.safetensors_header import SafetensorsHeader, bytes_of

if TYPE_CHECKING:
    from ascendtune.merge.layout import Piece


@dataclass(frozen=True)
class StackChange:
    """What an adapter of stacked experts adds to one tensor of the files."""

    adapter: Adapter
    stack: Stack
    piece: Piece
    rank: int
    scaling: float
    swapped: bool
    """Whether the parameter is (experts, out, in); else (experts, in, out)."""


@dataclass(frozen=True)
class Output:
    """A tensor of the merged model."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: tuple[SafetensorsHeader, str]
    """The file and the name that it starts from: the base's, or the adapter's for a whole weight."""
    additions: tuple[tuple[Adapter, LowRank], ...] = ()
    biases: tuple[tuple[Adapter, LowRank], ...] = ()
    """LoRA's own biases, for the bias of a module."""

    experts: tuple[StackChange, ...] = ()

    @property
    def size(self) -> int:
        return bytes_of(self.dtype, self.shape) if self.is_changed else self.source[0].tensors[self.source[1]].size

    @property
    def is_changed(self) -> bool:
        """Whether it has to be computed; otherwise bytes are copied."""
        source = self.source[0].tensors[self.source[1]]
        return bool(self.additions or self.biases or self.experts) or source.dtype != self.dtype
