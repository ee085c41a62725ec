"""A model in fp32 whose weights are not in memory: files are mapped, and a block becomes fp32 while it computes."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ascendtune.hub.safetensors_header import SafetensorsHeader, StoredTensor

Change = Callable[[str, torch.Tensor, torch.Tensor], bool]
"""Called with a weight's name, its numbers as they are stored and the fp32 tensor of that shape to put others into;
False: it has left that tensor alone, and the stored numbers are to be used."""
_PIECE = 1 << 24
"""Numbers converted before the pages that they were read from are released."""
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class NotInFp32(Exception):
    """The weights are stored in a dtype of quantised models."""


class MappedFiles:
    """The tensors of weight files, mapped: pages are read when they are used, and can be released."""

    def __init__(self, headers: Iterable[SafetensorsHeader]) -> None:
        """
        Raises:
            NotInFp32: a dtype that only quantised models have.
        """
        self._maps: list[mmap.mmap] = []
        self.tensors: dict[str, torch.Tensor] = {}
        """By name: each of the shape and the dtype that the file says."""
        for header in headers:
            with header.path.open("rb") as file:
                # A private map: nothing that is written into a tensor reaches the file.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._maps.append(mapped)
            for name, stored in header.tensors.items():
                self.tensors[name] = _mapped_tensor(mapped, stored)

    def release(self) -> None:
        """Give back the memory of pages that were read; they are read again when they are used."""
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
        # A file of others may hold a tensor at an address that the processor reads slowly or not at all.
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


@contextmanager
def in_fp32(model: Any, files: MappedFiles, change: Change | None = None) -> Iterator[None]:
    """Calls of `model` compute in fp32: the weights of a block are converted when it begins, and freed when it ends.

    Args:
        files: what the weights were loaded from.
        change: puts other numbers into the fp32 tensor of a weight before it is used.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    memory = _Memory()

    def before(block: nn.Module, _: Any) -> None:
        memory.reset(sum(each.numel() for each in block.parameters()))
        for each in block.parameters():
            if not each.is_floating_point() or each.dtype == torch.float32:
                continue
            stored[each] = each.data
            each.data = memory.take(each.shape)
            if change is None or not change(names[each], stored[each], each.data):
                _convert(stored[each], each.data, files)
            files.release()

    def after(block: nn.Module, *_: Any) -> None:
        for each in block.parameters():
            if each in stored:
                each.data = stored.pop(each)
        files.release()

    stored: dict[nn.Parameter, torch.Tensor] = {}
    handles = []
    for block in _blocks(model):
        if change is None and type(block) is nn.Embedding and block.max_norm is None:
            # The rows that were looked up become fp32, not the table.
            handles.append(block.register_forward_hook(lambda _, __, rows: rows.float()))
            continue
        handles += [block.register_forward_pre_hook(before), block.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        # Of a block whose call did not come to its end.
        for each, data in stored.items():
            each.data = data


def _convert(stored: torch.Tensor, target: torch.Tensor, files: MappedFiles) -> None:
    """Put `stored` into `target`, both of one shape; few pages of the files are in memory at a time."""
    for source, part in zip(stored.reshape(-1).split(_PIECE), target.view(-1).split(_PIECE), strict=True):
        part.copy_(source)
        files.release()


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Modules that hold all parameters between them: members of lists, such as decoder layers, and what is outside."""
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
        """Forget what was taken; the next tensors have at most as many numbers."""
        self._used = 0
        if self._numbers.numel() < numbers:
            # Freed first: both together would be the peak of memory.
            self._numbers = torch.empty(0)
            self._numbers = torch.empty(numbers)

    def take(self, shape: torch.Size) -> torch.Tensor:
        """An uninitialised fp32 tensor of `shape`."""
        begin = self._used
        self._used += shape.numel()
        return self._numbers[begin : self._used].view(shape)
