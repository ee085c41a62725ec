"""A tensor of the merged model, before it is computed."""

from __future__ import annotations

from dataclasses import dataclass

from ascendtune.train.merge.adapter import Adapter, LowRank
from ascendtune.train.merge.tensor_file import TensorFile, size_of


@dataclass(frozen=True)
class Output:
    """A tensor of the merged model."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: tuple[TensorFile, str]
    """The file and the name that it starts from: the base's, or the adapter's for a whole weight."""
    additions: tuple[tuple[Adapter, LowRank], ...] = ()
    biases: tuple[tuple[Adapter, LowRank], ...] = ()
    """LoRA's own biases, for the bias of a module."""

    @property
    def size(self) -> int:
        return size_of(self.dtype, self.shape) if self.is_changed else self.source[0].tensors[self.source[1]].size

    @property
    def is_changed(self) -> bool:
        """Whether it has to be computed; otherwise bytes are copied."""
        source = self.source[0].tensors[self.source[1]]
        return bool(self.additions or self.biases) or source.dtype != self.dtype
