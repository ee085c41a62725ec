"""A model in fp32 whose weights are not in memory: files are mapped, and a block is converted while it computes."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from ascendtune.hub.safetensors_header import TORCH_NAMES, SafetensorsHeader, StoredTensor
from ascendtune.merge.chunked_linear import ChunkedLinear, chunked_linear

_PIECE = 1 << 24
"""Numbers converted before the pages that they were read from are released."""
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, each) for name, each in TORCH_NAMES.items()}


class NotInFp32(Exception):
    """Raised if the weights are stored in a dtype of quantised models."""


class MappedFiles:
    """The tensors of weight files, mapped: pages are read when they are used, and can be released."""

    def __init__(self, headers: Iterable[SafetensorsHeader]) -> None:
        """
        Raises:
            NotInFp32: a dtype that only quantised models have.
        """
        self._maps: list[mmap.mmap] = []
        self.tensors: dict[str, torch.Tensor] = {}
        """By name: each with the shape and the dtype in the file."""
        for header in headers:
            with header.path.open("rb") as file:
                # A private map: data written into a tensor does not reach the file.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._maps.append(mapped)
            for name, stored in header.tensors.items():
                self.tensors[name] = _mapped_tensor(mapped, stored)

    def release(self) -> None:
        """Release the memory of pages that were read; they are read again when they are used."""
        for each in self._maps:
            each.madvise(mmap.MADV_DONTNEED)


def _mapped_tensor(mapped: mmap.mmap, stored: StoredTensor) -> torch.Tensor:
    """The tensor that `stored` describes: (*stored.shape,) in its own dtype.

    Raises:
        NotInFp32: a dtype that only quantised models have.
    """
    if stored.dtype not in _DTYPES:
        raise NotInFp32(f"the weights are {stored.dtype}")
    dtype, count = _DTYPES[stored.dtype], math.prod(stored.shape)
    if count == 0:
        return torch.empty(stored.shape, dtype=dtype)
    if stored.begin % dtype.itemsize:
        # Files of others may have a tensor at an unaligned address, which the processor reads slowly or not at all.
        begin = stored.begin
        return torch.frombuffer(bytearray(mapped[begin : begin + stored.size]), dtype=dtype).view(stored.shape)
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=stored.begin).view(stored.shape)


class AsStored:
    """A tensor for `from_pretrained(state_dict=…)` that keeps its dtype, whatever dtype the model is loaded in."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Wrap `tensor`, of any shape and dtype."""
        self._tensor = tensor

    def __getitem__(self, everything: Any) -> AsStored:
        return self

    def to(self, *_: Any, **__: Any) -> torch.Tensor:
        """The tensor as it is stored: any shape and dtype."""
        return self._tensor


class Changes(Protocol):
    """Other numbers for some weights."""

    def concern(self, name: str) -> bool:
        """Whether the weight `name` has other numbers."""

    def put(self, name: str, stored: torch.Tensor, target: torch.Tensor) -> None:
        """Write the numbers of the weight `name` into `target`.

        Args:
            stored: (*shape,) the weight in the file, in its type.
            target: (*shape,) fp32.
        """


@contextmanager
def in_fp32(
    model: Any, files: MappedFiles, changes: Changes | None = None, *, in_chunks: bool = True
) -> Iterator[None]:
    """Calls of `model` compute in fp32: the weights of a block are converted when it begins, and freed when it ends.

    Args:
        files: the files from which the weights were loaded.
        changes: are written into the fp32 tensor of a weight before it is used.
        in_chunks: whether linear modules convert their matrices chunk by chunk, while they multiply. A model that uses
            the numbers of such a matrix itself reads NaN.
    """
    with chunked_linear() as linear, _Conversion(model, files, changes, linear if in_chunks else None).active():
        yield


class _Conversion:
    """The modification of a model by `in_fp32`."""

    def __init__(self, model: Any, files: MappedFiles, changes: Changes | None, linear: ChunkedLinear | None) -> None:
        self._model, self._files, self._changes, self._chunked_linear = model, files, changes, linear
        self._names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        self._memory = _Memory()
        self._stored: dict[torch.Tensor, torch.Tensor] = {}
        """Original data of weights that are fp32 at the moment."""
        self._linear: dict[nn.Linear, torch.Tensor] = {}
        """The matrices of modules that multiply in chunks."""

    @contextmanager
    def active(self) -> Iterator[None]:
        handles = []
        try:
            if self._chunked_linear is not None:
                self._multiply_in_chunks()
            for block in _blocks(self._model):
                if self._is_plain_table(block):
                    # Only the rows that were looked up are converted to fp32, not the whole table.
                    handles.append(block.register_forward_hook(lambda _, __, rows: rows.float()))
                    continue
                whole = [each for each in block.parameters() if _is_converted(each)]
                handles.append(block.register_forward_pre_hook(partial(self._convert_block, whole)))
                handles.append(block.register_forward_hook(partial(self._free_block, whole)))
            yield
        finally:
            for handle in handles:
                handle.remove()
            for module, weight in self._linear.items():
                del module.forward
                module.weight = weight
            # Of a block whose call did not complete.
            for each, data in self._stored.items():
                each.data = data

    def _multiply_in_chunks(self) -> None:
        """Make linear modules multiply in chunks. The matrix of one that is not changed is NaN, in fp32, for other
        code.

        Only its dtype may be read: a model may convert the inputs of a product to it.
        """
        from peft.tuners.lora.layer import ParamWrapper

        # For `target_parameters` PEFT reads the adapter's matrices itself, and adds their product to the module's.
        wrappers = [each for each in self._model.modules() if isinstance(each, ParamWrapper)]
        read_by_peft = {module for wrapper in wrappers for module in wrapper.modules()}
        for module in [each for each in self._model.modules() if type(each) is nn.Linear and each not in read_by_peft]:
            self._linear[module] = weight = module.weight
            module.forward = partial(self._multiply, module)  # type: ignore[method-assign]
            if not self._is_changed(weight):
                hidden = torch.full((1, 1), math.nan).expand(weight.shape)
                module.weight = nn.Parameter(hidden, requires_grad=False)

    def _multiply(self, module: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        assert self._chunked_linear is not None
        result = self._chunked_linear.linear(inputs, self._linear[module], module.bias)
        self._files.release()
        return result

    def _is_changed(self, parameter: torch.Tensor) -> bool:
        return self._changes is not None and self._changes.concern(self._names[parameter])

    def _is_plain_table(self, block: nn.Module) -> bool:
        is_plain = type(block) is nn.Embedding and block.max_norm is None
        return is_plain and not any(self._is_changed(each) for each in block.parameters())

    def _convert_block(self, whole: list[nn.Parameter], block: nn.Module, inputs: Any) -> None:
        self._memory.reset(sum(each.numel() for each in whole))
        for each in whole:
            stored = self._stored[each] = each.data
            each.data = self._memory.take(each.shape)
            if self._changes is not None and self._is_changed(each):
                self._changes.put(self._names[each], stored, each.data)
            else:
                _convert(stored, each.data, self._files)
            self._files.release()

    def _free_block(self, whole: list[nn.Parameter], block: nn.Module, inputs: Any, outputs: Any) -> None:
        for each in whole:
            each.data = self._stored.pop(each)
        self._files.release()


def _is_converted(parameter: nn.Parameter) -> bool:
    return parameter.is_floating_point() and parameter.dtype != torch.float32


def _convert(stored: torch.Tensor, target: torch.Tensor, files: MappedFiles) -> None:
    """Write `stored` into `target`, both of one shape; few pages of the files are in memory at a time."""
    for source, part in zip(stored.reshape(-1).split(_PIECE), target.view(-1).split(_PIECE), strict=True):
        part.copy_(source)
        files.release()


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Modules that together have all parameters: members of lists, such as decoder layers, and other modules."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        elif any(True for _ in child.parameters(recurse=False)):
            yield child
        else:
            yield from _blocks(child)


class _Memory:
    """Memory for the weights of a block, which is used again: allocating it costs more than converting the weights."""

    def __init__(self) -> None:
        self._numbers = torch.empty(0)
        self._used = 0

    def reset(self, numbers: int) -> None:
        """Reuse the memory; the next tensors have at most `numbers` numbers together."""
        self._used = 0
        if self._numbers.numel() < numbers:
            # Freed first: otherwise both together would be the peak of memory.
            self._numbers = torch.empty(0)
            self._numbers = torch.empty(numbers)

    def take(self, shape: torch.Size) -> torch.Tensor:
        """An uninitialised fp32 tensor of `shape`."""
        begin = self._used
        self._used += shape.numel()
        return self._numbers[begin : self._used].view(shape)
