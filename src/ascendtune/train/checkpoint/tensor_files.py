"""The tensors of a checkpoint: one safetensors file for each rank, with the tensors or parts that it writes.

    tensors_rank_0.safetensors    model.weight, optimizer.weight.exp_avg, …
        __metadata__.parts        {"model.weight": {"size": [8, 8], "offsets": [4, 0]}}, for sharded tensors

A sharded tensor is written by the rank that has the shard; what several ranks have, by one of them. The data of
the file is one buffer in host memory, to which tensors are copied. It is written as it is, and reused for the next
checkpoint, because allocating new pages takes longer than the copy.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ascendtune.core.threads import run_in_daemon_thread
from ascendtune.machine.torch_backend.device import Device

Region = tuple[slice, ...]

_BLOCK_BYTES = 16 * 1024 * 1024
_ALIGNMENT = 64
_PARTS = "parts"
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class TensorPart:
    """One rank's part of a tensor; all of it if it is not sharded."""

    values: torch.Tensor
    """Any shape and dtype, on any device."""
    size: tuple[int, ...]
    """Shape of the whole tensor."""
    offsets: tuple[int, ...]
    """Start of `values` in the whole tensor."""

    @property
    def is_whole(self) -> bool:
        return tuple(self.values.shape) == self.size


@dataclass(frozen=True)
class StoredPart:
    """A part of a tensor in a file of a checkpoint."""

    file: Path
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint."""

    dtype: torch.dtype
    size: tuple[int, ...]
    parts: tuple[StoredPart, ...]


class Staging:
    """Content of this rank's file in host memory."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._layout: list[Any] | None = None
        self._head = b""
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._views: list[torch.Tensor] = []
        self._is_pinned = False
        self._room: Future[None] | None = None

    def preallocate(self, parts: Mapping[str, TensorPart]) -> None:
        """Allocate the memory for the first `copy` of `parts` in the background."""
        if self._layout is not None:
            return

        def lay_out() -> None:
            self._device.use_in_thread()
            self._lay_out(parts)

        self._room = run_in_daemon_thread(lay_out)

    def copy(self, parts: Mapping[str, TensorPart]) -> None:
        """Copy `parts` to host memory, and wait until the copies are complete."""
        if self._room is not None:
            # If the allocation failed, `_lay_out` tries it again: memory may be free now.
            wait([self._room])
            self._room = None
        self._lay_out(parts)
        for view, part in zip(self._views, _widest_first(parts).values(), strict=True):
            view.copy_(part.values, non_blocking=self._is_pinned)
        if not self._device.shares_host_memory:
            self._device.synchronize()

    def write(self, path: Path) -> str:
        """Write the file `path`, flushed to disk; return its SHA-256 in hexadecimal."""
        digest = hashlib.sha256(self._head)
        content: Any = self._buffer.numpy()
        with path.open("wb") as file:
            file.write(self._head)
            for begin in range(0, len(content), _BLOCK_BYTES):
                block = content[begin : begin + _BLOCK_BYTES]
                digest.update(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        return digest.hexdigest()

    def _lay_out(self, parts: Mapping[str, TensorPart]) -> None:
        """Create head, buffer and views for `parts`, unless the layout is that of the last call."""
        parts = _widest_first(parts)
        layout = [(name, part.values.dtype, part.values.shape, part.size, part.offsets) for name, part in parts.items()]
        if layout == self._layout:
            return
        self._layout = None
        header: dict[str, Any] = {}
        divided = {
            name: {"size": part.size, "offsets": part.offsets} for name, part in parts.items() if not part.is_whole
        }
        if divided:
            header["__metadata__"] = {_PARTS: json.dumps(divided)}
        end = 0
        for name, part in parts.items():
            begin, end = end, end + part.values.numel() * part.values.element_size()
            shape = list(part.values.shape)
            header[name] = {"dtype": _NAMES[part.values.dtype], "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % _ALIGNMENT)
        self._head = len(text).to_bytes(8, "little") + text
        # Free the old buffer before allocating the new one.
        self._views, self._buffer = [], torch.empty(0, dtype=torch.uint8)
        self._buffer = torch.empty(end, dtype=torch.uint8)
        # Touch each page first: a driver that pins memory holds locks for which kernels wait, and should not allocate
        # pages.
        self._buffer[:: mmap.PAGESIZE].zero_()
        self._is_pinned = self._device.pin(self._buffer)
        for name, part in parts.items():
            begin, end = header[name]["data_offsets"]
            self._views.append(self._buffer[begin:end].view(part.values.dtype).view(part.values.shape))
        self._layout = layout


def _widest_first(parts: Mapping[str, TensorPart]) -> dict[str, TensorPart]:
    """Sort by element size, so that each tensor begins at a multiple of its element size."""
    return dict(sorted(parts.items(), key=lambda each: -each[1].values.element_size()))


def file_of_rank(directory: Path, rank: int) -> Path:
    """The file of tensors written by a rank."""
    return directory / f"tensors_rank_{rank}.safetensors"


def parts_of_rank(tensors: Mapping[str, torch.Tensor], rank: int, ranks: int) -> dict[str, TensorPart]:
    """The parts of `tensors`, any shape and dtype, that rank `rank` of `ranks` writes. Each is written by one rank.

    Args:
        tensors: with the same names on every rank. Those that several ranks, or copies of the model, have are
            distributed by their size.
    """
    own = {}
    by_rank, by_copy = [0] * ranks, defaultdict[int, int](int)
    # Sorted, because every rank must compute the same result.
    for negative_bytes, name in sorted((-each.numel() * each.element_size(), name) for name, each in tensors.items()):
        tensor = tensors[name]
        if isinstance(tensor, DTensor):
            copy, copies = _copy_of(tensor)
            writer = min(range(copies), key=by_copy.__getitem__)
            by_copy[writer] -= negative_bytes
            if writer == copy and (part := part_of(tensor)).values.numel():
                own[name] = part
        else:
            writer = min(range(ranks), key=by_rank.__getitem__)
            by_rank[writer] -= negative_bytes
            if writer == rank:
                own[name] = part_of(tensor)
    return own


def part_of(tensor: torch.Tensor) -> TensorPart:
    """This rank's part of `tensor`, any shape and dtype; its values share memory with it."""
    if not isinstance(tensor, DTensor):
        return TensorPart(tensor, tuple(tensor.shape), (0,) * tensor.ndim)
    # The protocol of torch.distributed.checkpoint.
    (chunk,) = tensor.__create_chunk_list__()
    return TensorPart(tensor.to_local(), tuple(tensor.shape), tuple(chunk.offsets))


def _copy_of(tensor: DTensor) -> tuple[int, int]:
    """This rank's number among those with the same shard, and their number."""
    mesh, copy, copies = tensor.device_mesh, 0, 1
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            size = mesh.size(dimension)
            copy, copies = copy * size + mesh.get_local_rank(dimension), copies * size
    return copy, copies


def stored_tensors(directory: Path) -> dict[str, Stored]:
    """The tensors of the checkpoint in `directory`, by name; state.json has the number of ranks and so of files.

    Raises:
        Exception: of any class, if a file is missing or damaged.
    """
    from safetensors import safe_open

    ranks: int = json.loads((directory / "state.json").read_text(encoding="utf-8"))["ranks"]
    tensors: dict[str, Stored] = {}
    for rank in range(ranks):
        path = file_of_rank(directory, rank)
        with safe_open(path, framework="pt") as file:
            divided = json.loads((file.metadata() or {}).get(_PARTS, "{}"))
            for name in file.keys():  # noqa: SIM118  # `file` is not a dict
                entry = file.get_slice(name)
                sizes = tuple(entry.get_shape())
                layout = divided.get(name, {"size": sizes, "offsets": (0,) * len(sizes)})
                part = StoredPart(path, sizes, tuple(layout["offsets"]))
                before = tensors[name].parts if name in tensors else ()
                tensors[name] = Stored(_DTYPES[entry.get_dtype()], tuple(layout["size"]), (*before, part))
    return tensors


def fill(tensors: Mapping[str, torch.Tensor], stored: Mapping[str, Stored]) -> None:
    """Read the stored tensors into those of the same names in `tensors`, any shape and dtype; sizes must be equal.

    Raises:
        ValueError: a part of a tensor is in no file.
        OSError, SafetensorError: a file cannot be read.
    """
    from safetensors import safe_open

    opened: dict[Path, Any] = {}
    with ExitStack() as files:
        for name, tensor in tensors.items():
            requested = part_of(tensor)
            missing = requested.values.numel()
            for part in stored[name].parts:
                if (overlap := _overlap(requested, part)) is None:
                    continue
                if part.file not in opened:
                    opened[part.file] = files.enter_context(safe_open(part.file, framework="pt"))
                file, (source, target) = opened[part.file], overlap
                is_whole = all(each == slice(0, size) for each, size in zip(source, part.sizes, strict=True))
                values = file.get_tensor(name) if is_whole else file.get_slice(name)[source]
                requested.values[target].copy_(values)
                missing -= values.numel()
            if missing:
                raise ValueError(f"{missing} numbers of {name} are in no file")


def _overlap(requested: TensorPart, part: StoredPart) -> tuple[Region, Region] | None:
    """The intersection of two parts, as regions of `part` and of `requested`; None if it is empty."""
    within_part, within_requested = [], []
    extents = zip(requested.offsets, requested.values.shape, part.offsets, part.sizes, strict=True)
    for at, length, stored_at, stored_length in extents:
        begin, end = max(at, stored_at), min(at + length, stored_at + stored_length)
        if begin >= end:
            return None
        within_part.append(slice(begin - stored_at, end - stored_at))
        within_requested.append(slice(begin - at, end - at))
    return tuple(within_part), tuple(within_requested)
