"""The record of one step on one rank: collected during the step, written as `dump/step-N/rank_R.jsonl` after it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import ref

import torch
from torch.distributed.tensor import DTensor

from ascendtune.core.errors import translated_disk_errors
from ascendtune.core.files import sync_path, write_atomically
from ascendtune.train.dump.checksum import as_hex, row_checksums
from ascendtune.train.dump.statistics import Pending, measure, read

FORMAT = 2
_DEEPEST = 4
"""Deepest nesting of outputs that is searched for tensors."""
_BATCH = 2
"""Number of dimensions of a batch of token ids."""


@dataclass
class StepRecord:
    """Collects tensors in the order of execution.

    Attributes:
        header: the first line of the file.
        wide: dtype of sums: fp64 if the device has it.
        keeps_tensors: whether full tensors are copied to the host, too.
        micro_batch: number of the current micro-batch, from 0.
        gradient_scale: () factor by which the loss was scaled; gradients of outputs are divided by it.
    """

    header: dict[str, Any]
    wide: torch.dtype
    keeps_tensors: bool = False
    micro_batch: int = 0
    gradient_scale: torch.Tensor | None = None
    _rows: list[str] = field(default_factory=list)
    """The first part of each line: everything except the statistics."""
    _measured: list[Pending] = field(default_factory=list)
    _statistics_of: list[int] = field(default_factory=list)
    """For each row the index of its statistics in `_measured`."""
    _removed: set[int] = field(default_factory=set)
    _tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    _known: dict[int, tuple[ref[torch.Tensor], int, int]] = field(default_factory=dict)
    """Id -> (tensor, version, index in `_measured`): a tensor that several modules return is measured once."""
    _batches: dict[int, torch.Tensor] = field(default_factory=dict)
    """Micro-batch -> (rows,) int64: checksums of its rows of token ids."""
    _ids: dict[int, torch.Tensor] = field(default_factory=dict)
    """Micro-batch -> (rows, tokens) integers."""
    _begins: dict[int, torch.Tensor] = field(default_factory=dict)
    """Micro-batch -> (rows,) int64: length of the padding before the tokens of each row."""

    def add_token_ids(self, ids: torch.Tensor) -> None:
        """Store checksums of the rows of a micro-batch, (rows, tokens) integers, once for each micro-batch."""
        if self.micro_batch not in self._batches and ids.ndim == _BATCH and not isinstance(ids, DTensor):
            self._batches[self.micro_batch] = row_checksums(ids)
            self._ids[self.micro_batch] = ids

    def add_padding(self, mask: torch.Tensor) -> None:
        """Store where the rows of the micro-batch begin; their checksums become those of rows padded at the end.

        Args:
            mask: (rows, tokens), 0 for padding; ignored if its shape is not that of the token ids.
        """
        ids = self._ids.get(self.micro_batch)
        if ids is None or mask.shape != ids.shape or isinstance(mask, DTensor):
            return
        is_token = mask != 0
        tokens_first = is_token.int().argsort(dim=1, descending=True, stable=True)
        self._batches[self.micro_batch] = row_checksums(ids.gather(1, tokens_first))
        self._begins[self.micro_batch] = (is_token.cumsum(1) == 0).sum(1)

    def add(
        self, phase: str, name: str, slot: str, kind: str, tensor: torch.Tensor, *, micro_batch: int | None = None
    ) -> int | None:
        """Append the statistics of `tensor`, any shape; integers and DTensors are ignored.

        Returns:
            Its index in the order of execution; None if it was ignored.
        """
        if not tensor.is_floating_point() or isinstance(tensor, DTensor):
            return None
        dtype = _name_of(tensor.dtype)
        if phase == "backward" and self.gradient_scale is not None:
            # In fp32: usual scales exceed the range of fp16.
            tensor = tensor.float() / self.gradient_scale.to(tensor.device)
        order = len(self._rows)
        self._rows.append(
            f'{{"order": {order}, "phase": {_json(phase)}, "micro_batch": {_json(micro_batch)}, "name": {_json(name)}, '
            f'"slot": {_json(slot)}, "kind": {_json(kind)}, "shape": {list(tensor.shape)}, "dtype": {_json(dtype)}, '
        )
        known, version, place = self._known.get(id(tensor), (None, 0, 0))
        if known is None or known() is not tensor or version != tensor._version:
            place = len(self._measured)
            self._measured.append(measure(tensor, self.wide))
            self._known[id(tensor)] = ref(tensor), tensor._version, place
        self._statistics_of.append(place)
        if self.keeps_tensors:
            self._tensors[str(order)] = tensor.detach().to("cpu", copy=True).contiguous()
        return order

    def remove(self, order: int) -> None:
        """Remove the row with this index; the indices of others do not change."""
        self._removed.add(order)
        self._tensors.pop(str(order), None)

    def write(self, directory: Path) -> Path:
        """Write the record below `directory` and return its file, which is complete or absent.

        Raises:
            MachineError: the disk is full, read-only or not permitted.
        """
        file = directory / f"step-{self.header['step']:07d}" / f"rank_{self.header['rank']}.jsonl"
        with translated_disk_errors(file, "writing a dump"):
            file.parent.mkdir(parents=True, exist_ok=True)
        if self.keeps_tensors:
            _write_tensors(file.with_suffix(".safetensors"), self._tensors)
        hashes = [as_hex(each) for rows in self._batches.values() for each in rows.tolist()]
        header = {**self.header, "row_hashes": hashes} if hashes else self.header
        begins = [begin for rows in self._begins.values() for begin in rows.tolist()]
        header = {**header, "row_begins": begins} if any(begins) else header
        write_atomically(file, "\n".join((json.dumps(header), *self.lines(), "")))
        return file

    def lines(self) -> list[str]:
        """The rows added so far, with their statistics, as JSON. Waits for the device."""
        texts = [_json_of(each).removeprefix("{") for each in read(self._measured)]
        return [
            row + texts[place]
            for order, (row, place) in enumerate(zip(self._rows, self._statistics_of, strict=True))
            if order not in self._removed
        ]


@lru_cache(maxsize=1 << 14)
def _json(value: str | int | None) -> str:
    """Cached, because there are few different values: names and numbers of a model."""
    return json.dumps(value)


def _json_of(statistics: dict[str, Any]) -> str:
    """The same as `json.dumps`, which takes twice as long for numbers."""
    text = repr(statistics)
    return json.dumps(statistics) if "None" in text else text.replace("'", '"')


@lru_cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _write_tensors(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    with translated_disk_errors(file, "writing a dump"):
        try:
            save_file(tensors, temporary)
            sync_path(temporary)
            temporary.replace(file)
        except SafetensorError:
            # safetensors hides the error of the disk, and has removed the incomplete file.
            if shutil.disk_usage(file.parent).free < sum(each.nbytes for each in tensors.values()):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file)) from None
            raise
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def header_of(*, writer: str, step: int, rank: int, world_size: int, level: str, keeps_tensors: bool) -> dict[str, Any]:
    """The first line of a dump."""
    return {
        "format": FORMAT,
        "writer": writer,
        "step": step,
        "rank": rank,
        "world_size": world_size,
        "level": level,
        "content": "tensors" if keeps_tensors else "statistics",
        "complete": True,
    }


def tensors_in(value: Any, slot: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors, any shape, in the input or output of a module, with slots such as `output.0` or `output.logits`."""
    if isinstance(value, torch.Tensor):
        yield slot, value
    elif depth < _DEEPEST and isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from tensors_in(each, f"{slot}.{number}", depth + 1)
    elif depth < _DEEPEST and isinstance(value, Mapping):
        for key, each in value.items():
            yield from tensors_in(each, f"{slot}.{key}", depth + 1)
