"""The content of checkpoints: weights and optimizer state, written and read.

`NamedTensors` is the usual form, tensor by tensor and by name (torch.distributed.checkpoint): any number of ranks reads
it. Strategies with state of their own have other forms.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from ascendtune.core.errors import InputError, MachineError
from ascendtune.machine.peers import require_own_peers

Tensors = dict[str, torch.Tensor]

# One process is intended; DCP warns at every save and load.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")


class CheckpointContent(ABC):
    """Weights and optimizer state of a run, in one of the forms that checkpoints have."""

    form: ClassVar[str]
    """For state.json: only the same form can be read."""
    on_any_ranks: ClassVar[bool]
    """Whether another number of ranks can read it."""

    @abstractmethod
    def size_bytes(self) -> int:
        """What `write` will take on the disk, all ranks together; about."""

    @abstractmethod
    def write(self, directory: Path) -> Future[Any]:
        """Copy everything now, and write this rank's part; done when every rank's is written."""

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
        alone: whether there is one rank.
    """

    form = "tensors"
    on_any_ranks = True

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, alone: bool) -> None:
        self._model = model
        self._optimizer = optimizer
        self._alone = alone
        self._staging: Any = None

    def size_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors().values())

    def write(self, directory: Path) -> Future[Any]:
        from torch.distributed.checkpoint import async_save

        from ascendtune.train.checkpoint.tensor_index import IndexedWriter

        tensors = self._tensors()
        self._staging = self._staging or _reused_staging(tensors)
        pending = async_save(
            dict(tensors),
            storage_writer=IndexedWriter(directory, single_file_per_rank=True, sync_files=True, thread_count=1),
            async_stager=self._staging,
            process_group=None if self._alone else _host_group(),
            no_dist=self._alone,
        )
        assert isinstance(pending, Future)
        return pending

    def read(self, directory: Path) -> None:
        tensors = _read_into(lambda stored: (self._tensors(like=stored), stored), directory, alone=self._alone)
        self._restore_optimizer(tensors)

    def _tensors(self, like: dict[str, Any] | None = None) -> dict[str, torch.Tensor]:
        """Everything by name, `model.NAME` and `optimizer.NAME.KEY`. With `like`, optimizer state to be filled."""
        names = {parameter: name for name, parameter in self._model.named_parameters() if parameter.requires_grad}
        tensors = {f"model.{name}": parameter.detach() for parameter, name in names.items()}
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                prefix = f"optimizer.{names[parameter]}."
                if like is None:
                    state = self._optimizer.state.get(parameter, {})
                    tensors |= {prefix + key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
                    continue
                for key, entry in like.items():
                    if key.startswith(prefix) and "." not in key[len(prefix) :]:
                        # State of the parameter's shape is laid out (and sharded) like the parameter.
                        same = tuple(entry.size) == tuple(parameter.shape)
                        kind = entry.properties.dtype
                        tensors[key] = (
                            torch.zeros_like(parameter, dtype=kind, requires_grad=False)
                            if same
                            else torch.zeros(tuple(entry.size), dtype=kind)
                        )
        return tensors

    def _restore_optimizer(self, tensors: dict[str, torch.Tensor]) -> None:
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        state: dict[int, dict[str, torch.Tensor]] = {}
        for number, parameter in enumerate(parameters):
            prefix = f"optimizer.{names[parameter]}."
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
        alone=True,
    )


def _read_into(
    choose: Callable[[dict[str, Any]], tuple[Tensors, dict[str, Any]]], directory: Path, *, alone: bool
) -> Tensors:
    """Read tensors of a checkpoint in place.

    Args:
        choose: from what is stored (name -> metadata) to the tensors to fill and the stored entries they must match.
    """
    import torch.distributed.checkpoint as dcp

    from ascendtune.train.checkpoint.tensor_index import IndexedReader

    try:
        reader = IndexedReader(directory)
        stored = reader.read_metadata().state_dict_metadata
    except Exception as error:  # damaged JSON can be anything
        raise damaged_checkpoint(directory, error) from error
    tensors, expected = choose(stored)
    _require_same_shapes(tensors, expected, directory)
    try:
        dcp.load(tensors, storage_reader=reader, no_dist=alone)
    # DCP's own exception is a BaseException; truncated files surface as errors of zip or storage.
    except (Exception, dcp.api.CheckpointException) as error:
        raise damaged_checkpoint(directory, causes_of(error)[-1]) from error
    return tensors


def _require_same_shapes(tensors: Tensors, stored: dict[str, Any], directory: Path) -> None:
    differing = sorted(set(tensors) ^ set(stored)) or [
        name for name, tensor in tensors.items() if tuple(stored[name].size) != tuple(tensor.shape)
    ]
    if differing:
        raise InputError(
            f"the checkpoint belongs to another model or optimizer: {len(differing)} tensors do not match, first "
            f"{differing[0]}",
            code="checkpoint-model-differs",
            remedy="resume with the recipe that wrote it",
            where=directory,
        )


def damaged_checkpoint(directory: Path, why: object) -> MachineError:
    """The error for a checkpoint that cannot be read."""
    return MachineError(
        f"the checkpoint is damaged: {str(why) or type(why).__name__}",
        code="checkpoint-damaged",
        remedy="delete this directory to resume from the previous checkpoint; or start over: checkpoint.resume=never",
        where=directory,
    )


def causes_of(error: BaseException) -> list[BaseException]:
    """The error and what it came from, also on other ranks."""
    found = [error]
    while (cause := found[-1].__cause__ or found[-1].__context__) is not None and cause not in found:
        found.append(cause)
    failures = getattr(error, "failures", None)  # DCP's CheckpointException: rank -> (exception, traceback)
    if isinstance(failures, dict):
        found += [each[0] for each in failures.values()]
    return found


def _reused_staging(tensors: Tensors) -> Any:
    """Host memory that one checkpoint after the other is copied to: new pages cost more than the copy.

    None before torch 2.8, which has no such class: each checkpoint gets memory of its own there.
    """
    try:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    except ImportError:
        return None
    # torch pins it by a call of CUDA.
    pinned = any(tensor.is_cuda for tensor in tensors.values())
    return DefaultStager(StagingOptions(pinned, False, False, False))


def _host_group() -> dist.ProcessGroup:
    """A Gloo group of its own: the writing thread must not mix its messages with the training's."""
    global _GROUP
    if _GROUP is None:
        _GROUP = dist.new_group(backend="gloo")
        require_own_peers()
    return _GROUP


_GROUP: dist.ProcessGroup | None = None
