"""Keeps packed documents apart in layers with a state: linear attention, state-space models, short convolutions.

transformers computes these layers with a few functions, each in plain torch or by a package for GPUs. They carry state
from token to token, and in plain torch none of them can drop it where a document begins. Here these functions get the
documents of a sequence as rows of batches: those of similar length together, padded on the right, where no token sees
the padding. A convolution gets one sequence with zeros between the documents. All other computation of a layer, its
projections above all, remains packed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.hooks import RemovableHandle

from ascendtune.hub.gpu_functions import function_choices
from ascendtune.train.objective.head import decoder_of

_CONVOLUTION = "causal_conv1d_fn"
_TOKEN_DIMENSION = {
    "chunk_gated_delta_rule": 1,
    "chunk_kda": 1,
    "mamba_chunk_scan_combined": 1,
    "selective_scan_fn": 2,
}
"""Function -> dimension of the tokens in its output and in those inputs that have tokens. Dimension 0 is the batch."""
_FUSED = ("mamba_inner_fn", "mamba_split_conv1d_scan_combined")
"""Functions that compute a whole layer. If they return None, the layer calls the others."""
_MOST_PADDED = 2.0
"""Longest document of a batch, as a multiple of its shortest one."""


@contextmanager
def documents_apart(model: nn.Module) -> Iterator[None]:
    """Context of `keep_documents_apart`."""
    cells, handles = keep_documents_apart(model)
    try:
        yield
    finally:
        for cell, value in cells:
            cell.cell_contents = value
        for handle in handles:
            handle.remove()


def keep_documents_apart(model: nn.Module) -> tuple[list[tuple[CellType, Any]], list[RemovableHandle]]:
    """Make the layers with a state compute each document of a packed sequence by itself.

    Returns:
        The variables that were set, with their values before, and the hooks that were added.
    """
    cells, names = [], set()
    for choice in function_choices(model):
        name, cell = choice["func_name"].cell_contents, choice["implementation"]
        if name == _CONVOLUTION or name in _TOKEN_DIMENSION or name in _FUSED:
            names.add(choice["torch_function"].cell_contents.__name__)
            function = cell.cell_contents
            cells.append((cell, function))
            if not isinstance(function, _NotOfDocuments | _WithSpaces | _ByDocument):
                cell.cell_contents = _apart(name, function)
    if not names:
        return [], []
    sequence = _Sequence()
    handles = [
        model.register_forward_pre_hook(sequence.begin_model, with_kwargs=True),
        model.register_forward_hook(sequence.end_model, always_call=True),
        decoder_of(model).register_forward_pre_hook(sequence.begin_decoder, with_kwargs=True),
    ]
    for module in model.modules():
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        if code is not None and not names.isdisjoint(code.co_names):
            handles.append(module.register_forward_pre_hook(sequence.enter, with_kwargs=True))
            # Recomputation for the backward pass ends a forward pass by an exception.
            handles.append(module.register_forward_hook(_leave, always_call=True))
    return cells, handles


def _apart(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if name == _CONVOLUTION:
        return _WithSpaces(function)
    return _NotOfDocuments(function) if name in _FUSED else _ByDocument(function, _TOKEN_DIMENSION[name])


class _Sequence:
    """The sequence that a model computes."""

    def __init__(self) -> None:
        self._cu_seqlens: tuple[int, ...] | None = None
        self._batches: dict[torch.device, _Batches] = {}
        self._spaced: dict[tuple[torch.device, int], _Spaced] = {}
        self._in_model = False

    def begin_model(self, _module: nn.Module, _: Any, inputs: dict[str, Any]) -> None:
        """Hook before the model."""
        self._begin(inputs)
        self._in_model = True

    def end_model(self, *_: Any) -> None:
        """Hook after the model."""
        self._in_model = False

    def begin_decoder(self, _module: nn.Module, _: Any, inputs: dict[str, Any]) -> None:
        """Hook before the decoder: training calls it without the model, and some models do not pass the borders on."""
        if not self._in_model:
            self._begin(inputs)

    def _begin(self, inputs: dict[str, Any]) -> None:
        if (cu_seqlens := inputs.get("cu_seqlens")) != self._cu_seqlens:
            self._cu_seqlens, self._batches, self._spaced = cu_seqlens, {}, {}

    def enter(self, _module: nn.Module, positional: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Hook before a layer with a state."""
        if self._cu_seqlens is not None and len(self._cu_seqlens) > 2:
            _current.sequence = self
        # transformers' functions refuse sequences with borders.
        return positional, {key: value for key, value in inputs.items() if not key.startswith("cu_seqlens")}

    def batches(self, device: torch.device) -> _Batches:
        """The documents as rows of batches, made once for all layers."""
        assert self._cu_seqlens is not None
        if device not in self._batches:
            self._batches[device] = _Batches.of(self._cu_seqlens, device)
        return self._batches[device]

    def spaced(self, device: torch.device, zeros: int) -> _Spaced:
        """The documents with `zeros` between them, made once for all layers."""
        assert self._cu_seqlens is not None
        if (device, zeros) not in self._spaced:
            self._spaced[device, zeros] = _Spaced.of(self._cu_seqlens, zeros, device)
        return self._spaced[device, zeros]


@dataclass
class _Current:
    sequence: _Sequence | None = None
    """Of the layer that computes, if it has several documents."""


_current = _Current()


def _leave(*_: Any) -> None:
    """Hook after a layer with a state."""
    _current.sequence = None


@dataclass(frozen=True)
class _Batches:
    """The documents of a sequence as rows of batches."""

    rows: list[tuple[int, torch.Tensor]]
    """For each batch its number of documents, and (documents × longest,) int64: the token at each of its positions.
    After the end of a document its last token is repeated."""
    positions: torch.Tensor
    """(tokens,) int64: position of each token in the batches, one after the other."""

    @classmethod
    def of(cls, cu_seqlens: tuple[int, ...], device: torch.device) -> _Batches:
        ends = np.array(cu_seqlens)
        starts, lengths = ends[:-1], np.diff(ends)
        positions = np.empty(ends[-1], np.int64)
        rows, begin = [], 0
        for documents in _of_similar_length(lengths):
            step, length = np.arange(lengths[documents[0]]), lengths[documents, None]
            tokens = starts[documents, None] + np.minimum(step, length - 1)
            positions[tokens[step < length]] = begin + np.flatnonzero(step < length)
            rows.append((len(documents), _sent(tokens.reshape(-1), device)))
            begin += tokens.size
        return cls(rows, _sent(positions, device))


@dataclass(frozen=True)
class _Spaced:
    """The documents of a sequence with zeros between them."""

    tokens: torch.Tensor
    """(positions,) int64: the token at each position; the number of tokens for a zero."""
    positions: torch.Tensor
    """(tokens,) int64: position of each token."""

    @classmethod
    def of(cls, cu_seqlens: tuple[int, ...], zeros: int, device: torch.device) -> _Spaced:
        lengths = np.diff(cu_seqlens)
        numbers = np.arange(cu_seqlens[-1])
        positions = numbers + zeros * np.repeat(np.arange(len(lengths)), lengths)
        tokens = np.full(positions[-1] + 1, len(numbers))
        tokens[positions] = numbers
        return cls(_sent(tokens, device), _sent(positions, device))


def _of_similar_length(lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Numbers of the documents of each batch, the longest first; `lengths` is (documents,)."""
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or lengths[order[begin]] > _MOST_PADDED * lengths[order[end]]:
            yield order[begin:end]
            begin = end


def _sent(values: NDArray[np.int64], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(values)
    # The copy is queued: otherwise the host would wait for all earlier work of the device.
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True)
class _NotOfDocuments:
    """A fused function, which has no result for several documents."""

    function: Callable[..., Any]

    def __call__(self, *positional: Any, **named: Any) -> Any:
        return None if _current.sequence is not None else self.function(*positional, **named)


@dataclass(frozen=True)
class _WithSpaces:
    """A causal convolution that gets zeros before each document, as at the beginning of a sequence.

    One call for all documents: the gradient of its weights is summed within it, in the same way with all strategies.
    """

    function: Callable[..., Any]

    def __call__(self, hidden: torch.Tensor, *positional: Any, **named: Any) -> Any:
        if _current.sequence is None:
            return self.function(hidden, *positional, **named)
        weight = named["weight"] if "weight" in named else positional[0]
        spaced = _current.sequence.spaced(hidden.device, weight.shape[-1] - 1)
        hidden = nn.functional.pad(hidden, (0, 1)).index_select(2, spaced.tokens)
        return self.function(hidden, *positional, **named).index_select(2, spaced.positions)


@dataclass(frozen=True)
class _ByDocument:
    """A function with a state that gets each document as a row of a batch."""

    function: Callable[..., Any]
    dimension: int
    """As in `_TOKEN_DIMENSION`."""

    def __call__(self, *positional: Any, **named: Any) -> Any:
        if _current.sequence is None:
            return self.function(*positional, **named)
        batches, at = _current.sequence.batches(positional[0].device), self.dimension - 1
        outputs: list[torch.Tensor] = []
        states: list[None] = []
        for documents, index in batches.rows:

            def rows(value: Any, documents: int = documents, index: torch.Tensor = index) -> Any:
                return self._rows(value, len(batches.positions), documents, index)

            output = self.function(*map(rows, positional), **{key: rows(value) for key, value in named.items()})
            if isinstance(output, tuple):
                output, *states = output
                assert not any(state is not None for state in states), "documents have no state in common"
            outputs.append(output.movedim(0, at).flatten(at, at + 1))
        joined = torch.cat(outputs, at).index_select(at, batches.positions)[None]
        return (joined, *states) if states else joined

    def _rows(self, value: Any, tokens: int, documents: int, index: torch.Tensor) -> Any:
        """(1, …, tokens, …) -> (documents, …, longest, …); what has no tokens unchanged."""
        if not isinstance(value, torch.Tensor) or value.dim() < 3:
            return value
        if value.shape[0] != 1 or value.shape[self.dimension] != tokens:
            return value
        at = self.dimension - 1
        return value.squeeze(0).index_select(at, index).unflatten(at, (documents, -1)).movedim(at, 0)
