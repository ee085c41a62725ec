"""The content of checkpoints: weights and optimizer state, written and read.

`NamedTensors` is the usual form, tensor by tensor and by name: any number of ranks reads it. Strategies with state of
their own have other forms.
"""

from __future__ import annotations

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
"""Of the thread that writes: training goes first where cores are few."""


class CheckpointContent(ABC):
    """Weights and optimizer state of a run, in one of the forms that checkpoints have."""

    form: str
    """For state.json: only the same form can be read."""
    on_any_ranks: ClassVar[bool]
    """Whether another number of ranks can read it."""

    @abstractmethod
    def size_bytes(self) -> int:
        """What `write` will take on the disk, all ranks together; about."""

    def make_room(self) -> None:  # noqa: B027  # for those who need none
        """Get memory that the first `write` will need, in the background; the state is as large as it will be."""

    @abstractmethod
    def write(self, directory: Path, files: Mapping[str, bytes]) -> Future[dict[str, str]]:
        """Copy everything now, and write this rank's part; done when every rank's is written.

        Args:
            files: written as well: name in `directory` -> content.

        Returns:
            SHA-256 of files of all ranks, by name, as far as they were made while writing; in hexadecimal.
        """

    @abstractmethod
    def read(self, directory: Path) -> None:
        """Put back what `write` wrote.

        Raises:
            MachineError: it is damaged.
            InputError: it belongs to another model.
        """


class NamedTensors(CheckpointContent):
    """`model.NAME` for every trainable parameter, `optimizer.NAME.KEY` for its state.

    Args:
        model: its trainable parameters are the weights that are kept; frozen ones come from the base model.
        device: where they are.
        rank: of this process, of `ranks`.
        in_own_time: makes the context of writing, which may take one host hours longer than another.
    """

    form = "tensors"
    on_any_ranks = True

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, device: Device, *, rank: int = 0, ranks: int = 1,
        in_own_time: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:  # fmt: skip
        self._optimizer = optimizer
        self._rank = rank
        self._ranks = ranks
        self._in_own_time = in_own_time
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self._staging = Staging(device)
        # Made now: making it takes torchrun's store, and a torchrun that was killed has none for the last checkpoint.
        self._group = _host_group() if ranks > 1 else None

    def size_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors().values())

    def make_room(self) -> None:
        self._staging.make_room(parts_of_rank(self._tensors(), self._rank, self._ranks))

    def write(self, directory: Path, files: Mapping[str, bytes]) -> Future[dict[str, str]]:
        tensors = self._tensors()
        self._staging.copy(parts_of_rank(tensors, self._rank, self._ranks))
        writer = ThreadPoolExecutor(1, "checkpoint")
        written = writer.submit(self._write, directory, files, sorted(tensors))
        writer.shutdown(wait=False)
        return written

    def _write(self, directory: Path, files: Mapping[str, bytes], names: list[str]) -> dict[str, str]:
        # Linux has a priority for each thread.
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        path = file_of_rank(directory, self._rank)
        digests, failure = dict[str, str](), None
        with self._in_own_time():
            try:
                write_files(directory, files)
                digests[path.name] = self._staging.write(path)
            except Exception as error:  # noqa: BLE001  # raised below, when the other ranks know of it
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
        """Everything by name, `model.NAME` and `optimizer.NAME.KEY`. With `like`, optimizer state to be filled."""
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
                        # State of the parameter's shape is laid out (and sharded) like the parameter.
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
            found = {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
            if found := {key: value for key, value in found.items() if "." not in key}:
                state[number] = found
        # Its own loading knows which entries live on the host (the step count of an unfused optimizer).
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})


def read_weights(model: nn.Module, directory: Path) -> None:
    """Put the weights of a checkpoint of the form `NamedTensors` into the trainable parameters of `model`.

    Args:
        model: in one process, its parameters whole.

    Raises:
        MachineError: the checkpoint is damaged.
        InputError: it belongs to another model.
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
    """Read tensors of a checkpoint in place.

    Args:
        choose: from what is stored to the tensors to fill and the stored ones they must match.
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
            f"the checkpoint belongs to another model or optimizer: {len(differing)} tensors do not match, first "
            f"{differing[0]}",
            code="checkpoint-model-differs",
            remedy="resume with the recipe that wrote it",
            where=directory,
        )


def write_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write `files`, name -> content, into `directory`, flushed to disk."""
    for name, content in files.items():
        with (directory / name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def digests_of_ranks(directory: Path, own: Iterable[Path], gather: Callable[[str], list[str]]) -> dict[str, str]:
    """SHA-256 of the files of all ranks, by name in `directory`, in hexadecimal; flushed to disk. Every rank calls it.

    Were they left to the main rank, it would read alone what all have written, while the others wait for it.

    Args:
        own: those that this rank has written.
        gather: from a text of this rank to those of every rank.
    """
    digests = {}
    for path in own:
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
    """What a rank tells the others when it has written its part of a checkpoint."""

    names: list[str]
    """Of all tensors: every rank must have the same, or some would be written by none."""
    digests: dict[str, str]
    failure: str = ""
    errno: int = 0


def _as_fields(failure: Exception | None) -> tuple[str, int]:
    """Message and number of an error; of the operating system's, without the file."""
    if isinstance(failure, OSError) and failure.errno is not None:
        return failure.strerror or str(failure), failure.errno
    return ("", 0) if failure is None else (f"{type(failure).__name__}: {failure}", 0)


def _of_all_ranks(own: _Report, group: dist.ProcessGroup) -> dict[str, str]:
    """The digests of all ranks, when each has written its part.

    Raises:
        OSError, RuntimeError: another rank could not; or the connection to it is lost.
    """
    texts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(texts, json.dumps(own), group)
    reports = [_Report(*json.loads(text)) for text in texts]
    for rank, each in enumerate(reports):
        if each.failure:
            told = f"rank {rank}: {each.failure}"
            raise OSError(each.errno, told) if each.errno else RuntimeError(told)
        if each.names != own.names:
            raise RuntimeError(f"rank {rank} has other tensors than this one")
    return {name: digest for each in reports for name, digest in each.digests.items()}


def _host_group() -> dist.ProcessGroup:
    """A Gloo group of its own: the writing thread must not mix its messages with the training's."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    require_own_peers()
    return group
