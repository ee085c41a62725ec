"""The content of checkpoints: weights and optimizer state, written and read.

`NamedTensors` is the usual form, with a name for each tensor: any number of ranks can read it. Strategies with their
own state have other forms.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.files import digest_of_file, sync_path
from ascendtune.core.units import count_of
from ascendtune.machine.peers import require_own_peers
from ascendtune.machine.torch_backend.device import Device
from ascendtune.train.checkpoint.tensor_files import (
    Staging,
    Stored,
    file_of_rank,
    fill,
    parts_of_rank,
    stored_tensors,
)

Tensors = dict[str, torch.Tensor]

_NICENESS = 5
"""Niceness of the writing thread: training has priority if there are few cores."""


class CheckpointContent(ABC):
    """Weights and optimizer state of a run, in one of the forms of checkpoints."""

    form: str
    """Name of the form in state.json: only the same form can be read."""
    supports_any_rank_count: ClassVar[bool]
    """Whether a different number of ranks can read it."""

    @abstractmethod
    def size_bytes(self) -> int:
        """Approximate size on disk of what `write` writes, of all ranks together."""

    def preallocate(self) -> None:  # noqa: B027  # forms that need no memory inherit this
        """Allocate memory for the first `write` in the background, once the state has its final size."""

    @abstractmethod
    def write(self, directory: Path, files: Mapping[str, bytes]) -> Future[dict[str, str]]:
        """Copy everything now and write this rank's part; the future is done when every rank's part is written.

        Args:
            files: further files to write: name in `directory` -> content.

        Returns:
            SHA-256 of every file of all ranks, by name in `directory`, in hexadecimal. Hosts that share the directory
            may not list each other's newest files yet.
        """

    @abstractmethod
    def read(self, directory: Path) -> None:
        """Restore what `write` has written.

        Raises:
            MachineError: the checkpoint is damaged.
            InputError: the checkpoint belongs to another model.
        """


class NamedTensors(CheckpointContent):
    """`model.NAME` for every trainable parameter, `optimizer.NAME.KEY` for its state.

    Args:
        model: its trainable parameters are stored; frozen ones come from the base model.
        device: device of the parameters.
        rank: this process's rank of `ranks`.
        uneven_writing: returns the context for writing, which may take one host hours longer than another.
    """

    form = "tensors"
    supports_any_rank_count = True

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, device: Device, *, rank: int = 0, ranks: int = 1,
        uneven_writing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:  # fmt: skip
        self._optimizer = optimizer
        self._rank = rank
        self._ranks = ranks
        self._uneven_writing = uneven_writing
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self._staging = Staging(device)
        # Made now: making it takes torchrun's store, and a torchrun that was killed has none for the last checkpoint.
        self._group = _host_group() if ranks > 1 else None

    def size_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors().values())

    def preallocate(self) -> None:
        self._staging.preallocate(parts_of_rank(self._tensors(), self._rank, self._ranks))

    def write(self, directory: Path, files: Mapping[str, bytes]) -> Future[dict[str, str]]:
        tensors = self._tensors()
        self._staging.copy(parts_of_rank(tensors, self._rank, self._ranks))
        writer = ThreadPoolExecutor(1, "checkpoint")
        written = writer.submit(self._write, directory, files, sorted(tensors))
        writer.shutdown(wait=False)
        return written

    def _write(self, directory: Path, files: Mapping[str, bytes], names: list[str]) -> dict[str, str]:
        # On Linux each thread has its own priority.
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        path = file_of_rank(directory, self._rank)
        digests, failure = dict[str, str](), None
        with self._uneven_writing():
            try:
                digests = write_files(directory, files)
                digests[path.name] = self._staging.write(path)
            except Exception as error:  # noqa: BLE001  # raised below, after it has been reported to the other ranks
                failure = error
        if self._group is not None:
            with suppress(Exception) if failure else nullcontext():
                digests = _of_all_ranks(_Report(names, digests, *_as_fields(failure)), self._group)
        if failure is not None:
            raise failure
        return digests

    def read(self, directory: Path) -> None:
        tensors = _read_into(lambda stored: (self._tensors(like=stored), stored), directory)
        self._restore_optimizer(tensors)

    def _tensors(self, like: Mapping[str, Stored] | None = None) -> dict[str, torch.Tensor]:
        """All tensors by name, `model.NAME` and `optimizer.NAME.KEY`. With `like`, optimizer state to be filled."""
        trained = {parameter: name for parameter, name in self._names.items() if parameter.requires_grad}
        tensors = {f"model.{name}": parameter.detach() for parameter, name in trained.items()}
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                prefix = f"optimizer.{trained[parameter]}."
                if like is None:
                    state = self._optimizer.state.get(parameter, {})
                    tensors |= {prefix + key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
                    continue
                for key, entry in like.items():
                    if key.startswith(prefix) and "." not in key[len(prefix) :]:
                        # State in the parameter's shape has the parameter's layout (and sharding).
                        tensors[key] = (
                            torch.zeros_like(parameter, dtype=entry.dtype, requires_grad=False)
                            if entry.size == tuple(parameter.shape)
                            else torch.zeros(entry.size, dtype=entry.dtype)
                        )
        return tensors

    def _restore_optimizer(self, tensors: dict[str, torch.Tensor]) -> None:
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        state: dict[int, dict[str, torch.Tensor]] = {}
        for number, parameter in enumerate(parameters):
            prefix = f"optimizer.{self._names[parameter]}."
            entries = {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
            if entries := {key: value for key, value in entries.items() if "." not in key}:
                state[number] = entries
        # `load_state_dict` knows which entries stay on the host (the step count of an unfused optimizer).
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})


def read_weights(model: nn.Module, directory: Path) -> None:
    """Load the weights of a `NamedTensors` checkpoint into the trainable parameters of `model`.

    Args:
        model: not sharded.

    Raises:
        MachineError: the checkpoint is damaged.
        InputError: the checkpoint belongs to another model.
    """
    tensors = {
        f"model.{name}": parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    _read_into(
        lambda stored: (tensors, {name: entry for name, entry in stored.items() if name.startswith("model.")}),
        directory,
    )


def _read_into(
    choose: Callable[[Mapping[str, Stored]], tuple[Tensors, Mapping[str, Stored]]], directory: Path
) -> Tensors:
    """Read tensors of a checkpoint into existing tensors.

    Args:
        choose: returns, for the stored tensors, those to fill and the stored ones that must match them.
    """
    try:
        stored = stored_tensors(directory)
    except Exception as error:  # a damaged header can be anything
        raise damaged_checkpoint(directory, error) from error
    tensors, expected = choose(stored)
    _require_same_shapes(tensors, expected, directory)
    try:
        fill(tensors, stored)
    except Exception as error:  # errors of the disk and of safetensors
        raise damaged_checkpoint(directory, error) from error
    return tensors


def _require_same_shapes(tensors: Tensors, stored: Mapping[str, Stored], directory: Path) -> None:
    differing = sorted(set(tensors) ^ set(stored)) or [
        name for name, tensor in tensors.items() if stored[name].size != tuple(tensor.shape)
    ]
    if differing:
        raise InputError(
            f"the checkpoint belongs to another model or optimizer: "
            f"{count_of(len(differing), 'tensor does', 'tensors do')} not match, first "
            f"{differing[0]}",
            code="checkpoint-model-differs",
            remedy="resume with the recipe that wrote it",
            where=directory,
        )


def write_files(directory: Path, files: Mapping[str, bytes]) -> dict[str, str]:
    """Write `files`, name -> content, into `directory`, flushed to disk; return SHA-256 of each, in hexadecimal."""
    for name, content in files.items():
        with (directory / name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def digests_of_ranks(
    directory: Path, known: Mapping[str, str], unknown: Iterable[Path], gather: Callable[[str], list[str]]
) -> dict[str, str]:
    """SHA-256 of the files of all ranks, by name in `directory`, in hexadecimal; flushed to disk. Every rank calls it.

    Each rank hashes its own files: the main rank alone would read all of them while the others wait.

    Args:
        known: digests of files of this rank that are flushed already.
        unknown: its other files.
        gather: returns the texts of all ranks for that of this rank.
    """
    digests = dict(known)
    for path in unknown:
        sync_path(path)
        sync_path(path.parent)
        digests[str(path.relative_to(directory))] = digest_of_file(path)
    return {name: digest for text in gather(json.dumps(digests)) for name, digest in json.loads(text).items()}


def damaged_checkpoint(directory: Path, why: object) -> MachineError:
    """The error for a checkpoint that cannot be read."""
    return MachineError(
        f"the checkpoint is damaged: {str(why) or type(why).__name__}",
        code="checkpoint-damaged",
        remedy="delete this directory to resume from the previous checkpoint; or start over: checkpoint.resume=never",
        where=directory,
    )


class _Report(NamedTuple):
    """Report of a rank to the others after it has written its part of a checkpoint."""

    names: list[str]
    """Names of all tensors: if they differed between ranks, some tensors would be written by none."""
    digests: dict[str, str]
    failure: str = ""
    errno: int = 0


def _as_fields(failure: Exception | None) -> tuple[str, int]:
    """Message and error number; for an OSError without the file name."""
    if isinstance(failure, OSError) and failure.errno is not None:
        return failure.strerror or str(failure), failure.errno
    return ("", 0) if failure is None else (f"{type(failure).__name__}: {failure}", 0)


def _of_all_ranks(own: _Report, group: dist.ProcessGroup) -> dict[str, str]:
    """The digests of all ranks, once each has written its part.

    Raises:
        OSError, RuntimeError: another rank failed to write, or the connection to it is lost.
    """
    texts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(texts, json.dumps(own), group)
    reports = [_Report(*json.loads(text)) for text in texts]
    for rank, each in enumerate(reports):
        if each.failure:
            message = f"rank {rank}: {each.failure}"
            raise OSError(each.errno, message) if each.errno else RuntimeError(message)
        if each.names != own.names:
            raise RuntimeError(f"rank {rank} has other tensors than this one")
    return {name: digest for each in reports for name, digest in each.digests.items()}


def _host_group() -> dist.ProcessGroup:
    """Make a separate Gloo group: the writing thread must not mix its messages with those of the training."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    require_own_peers()
    return group
