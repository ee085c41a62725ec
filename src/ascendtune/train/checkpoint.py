"""Checkpoints: the whole state of a run, written beside the training, complete or absent.

A checkpoint is written into `.step_N.writing`, flushed to disk, and gets its name `step_N` by one rename when every
rank has written its part. Whatever kills the run in between leaves a directory that no reader takes for a checkpoint.

    step_N/state.json                 step, counters, learning state that is not a tensor
    step_N/rng/rank_R.safetensors     the random state of each rank
    step_N/*.distcp, .metadata        tensors by name (torch.distributed.checkpoint): sharded, any number of ranks reads
    step_N/zero/                      in their place, what DeepSpeed writes
    step_N/digests.json               SHA-256 of every other file: a flipped bit is noticed before it is trained on

The .metadata file is a pickle, so a checkpoint is loaded from the run's own directory only, unless it is trusted.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ascendtune.core.errors import InputError, MachineError, disk_fault, translated_disk_errors
from ascendtune.core.files import digest_of_file, removed_on_failure, sync_directory, sync_tree, write_json
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import format_bytes
from ascendtune.train.random_state import read_random_state, restore_random_state, save_random_state
from ascendtune.train.strategy.base import Strategy

State = dict[str, Any]
# Room beyond the tensors themselves, for metadata and for the log that goes on growing.
_SLACK_BYTES = 16 * 1024 * 1024
_DIGESTS = "digests.json"


# One process is what we mean; DCP wonders about it at every save and load.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")


class Checkpointer:
    """Writes and reads the checkpoints of one run.

    Args:
        model: its trainable parameters and buffers are the weights that are kept; frozen ones come from the base model.
        on_complete: called on the main rank, in the writing thread, with the step of every finished checkpoint.
    """

    def __init__(
        self,
        run: RunDir,
        strategy: Strategy,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        keep: int,
        on_complete: Callable[[int], None] = lambda step: None,
    ) -> None:
        self._run = run
        self._strategy = strategy
        self._model = model
        self._optimizer = optimizer
        self._keep = keep
        self._on_complete = on_complete
        self._pending: Future[Any] | None = None
        self._pending_step = 0
        self._saved_step = 0
        self.protected: set[int] = set()
        """Steps that are kept whatever their age (the best one)."""

    def save(self, step: int, state: State) -> None:
        """Copy everything now, write it in the background. Waits for the previous one first.

        A second call for the same step does nothing: evaluation, schedule and a signal may each want a checkpoint.

        Raises:
            MachineError: the disk has no room, or the previous checkpoint could not be written.
        """
        if step == self._saved_step:
            return
        self.wait()
        own = self._strategy.has_own_checkpoints
        tensors = {} if own else self._tensors()
        directory = self._run.checkpoints / f".step_{step}.writing"
        with translated_disk_errors(directory, "writing a checkpoint"), removed_on_failure(directory):
            self._require_space(tensors)
            (directory / "rng").mkdir(parents=True, exist_ok=True)
            save_random_state(directory, self._strategy)
            if self._strategy.is_main:
                facts = {"strategy": self._strategy.name, "world_size": self._strategy.world_size}
                write_json(directory / "state.json", {"step": step, **facts, **state})
            if own:
                self._strategy.barrier()  # the directory is there
                self._strategy.write_state(directory)
        pending = _done() if own else self._write(tensors, directory)
        self._pending, self._pending_step, self._saved_step = pending, step, step
        if self._strategy.is_main:
            # Chained rather than polled: the name is given as soon as the last byte is down, not at the next step.
            self._pending = _then(pending, lambda: self._finish(step, directory))

    def _write(self, tensors: State, directory: Path) -> Future[Any]:
        from torch.distributed.checkpoint import FileSystemWriter, async_save

        alone = self._strategy.world_size == 1
        pending = async_save(
            tensors,
            storage_writer=FileSystemWriter(directory, single_file_per_rank=True, sync_files=True, thread_count=1),
            process_group=None if alone else _host_group(),
            no_dist=alone,
        )
        assert isinstance(pending, Future)
        return pending

    def poll(self) -> None:
        """Raise what went wrong in the background, if anything did. Costs nothing."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Block until nothing is being written.

        Raises:
            MachineError: the checkpoint could not be written; no `step_N` exists for it.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        from torch.distributed.checkpoint.api import CheckpointException

        try:
            pending.result()
        # DCP's own exception is no Exception. Whatever the writer raised is raised again, in our words.
        except (Exception, CheckpointException) as error:
            place = self._run.checkpoint(self._pending_step)
            shutil.rmtree(self._run.checkpoints / f".step_{self._pending_step}.writing", ignore_errors=True)
            fault = next(
                (found for each in _chain(error) if (found := disk_fault(each, place, "writing a checkpoint"))), None
            )
            raise fault or MachineError(
                f"the checkpoint of step {self._pending_step} could not be written: {error}",
                remedy="check the file system of the run directory",
                where=place,
            ) from error

    def load(self, directory: Path) -> State:
        """Put weights, optimiser and random state back; returns what `save` was given, with `step`.

        Raises:
            MachineError: the checkpoint is damaged.
            InputError: it belongs to another model.
        """
        try:
            _require_intact(directory, self._strategy)
            state: State = json.loads((directory / "state.json").read_text())
            random_state = read_random_state(directory, self._strategy)
        except Exception as error:
            raise _damaged(directory, error) from error
        if not isinstance(state, dict) or not isinstance(state.get("step"), int):
            raise _damaged(directory, "state.json does not name the step")
        _require_readable(state, self._strategy, directory)
        if self._strategy.has_own_checkpoints:
            self._strategy.read_state(directory)
        else:
            self._read(directory)
        restore_random_state(random_state, self._strategy)
        return state

    def _read(self, directory: Path) -> None:
        import torch.distributed.checkpoint as dcp

        try:
            reader = dcp.FileSystemReader(directory)
            stored = reader.read_metadata().state_dict_metadata
        except Exception as error:  # unpickling damaged metadata can raise anything
            raise _damaged(directory, error) from error
        tensors = self._tensors(like=stored)
        self._require_same_shapes(tensors, stored, directory)
        try:
            dcp.load(tensors, storage_reader=reader, no_dist=self._strategy.world_size == 1)
        # DCP's own exception is no Exception; truncated files surface as errors of zip, pickle, or storage.
        except (Exception, dcp.api.CheckpointException) as error:
            raise _damaged(directory, _innermost(error)) from error
        self._restore_optimizer(tensors)

    def _require_same_shapes(self, tensors: State, stored: State, directory: Path) -> None:
        differing = sorted(set(tensors) ^ set(stored)) or [
            name for name, tensor in tensors.items() if tuple(stored[name].size) != tuple(tensor.shape)
        ]
        if differing:
            raise InputError(
                f"the checkpoint is of another model or optimizer: {len(differing)} tensors do not match, first "
                f"{differing[0]}",
                remedy="resume with the recipe that wrote it",
                where=directory,
            )

    def _tensors(self, like: dict[str, Any] | None = None) -> dict[str, torch.Tensor]:
        """Everything by name, `model.NAME` and `optimizer.NAME.KEY`. With `like`, optimiser state to be filled."""
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
                        # What has the parameter's shape is laid out (and sharded) like the parameter.
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
        # Its own loading knows which entries live on the host (the step count of an unfused optimiser).
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})

    def _require_space(self, tensors: dict[str, torch.Tensor]) -> None:
        needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) + _SLACK_BYTES
        free = shutil.disk_usage(self._run.checkpoints).free
        if free < needed:
            raise MachineError(
                f"a checkpoint needs {format_bytes(needed)}, the disk has {format_bytes(free)} left",
                remedy="free space, set checkpoint.keep lower, or put run_dir on another disk",
                where=self._run.checkpoints,
            )

    def _finish(self, step: int, directory: Path) -> None:
        # DCP's writer syncs the .metadata while the end of it is still in Python's buffer (seen in torch 2.13).
        sync_tree(directory)
        write_json(directory / _DIGESTS, {name: digest_of_file(directory / name) for name in _files_of(directory)})
        final = self._run.checkpoint(step)
        if final.exists():
            self._run.remove_checkpoint(step)
        directory.rename(final)
        sync_directory(self._run.checkpoints)
        self._on_complete(step)
        self.prune()

    def prune(self) -> None:
        """Remove all but the newest `keep` checkpoints and the protected ones."""
        for old in self._run.checkpoint_steps()[: -self._keep]:
            if old not in self.protected:
                self._run.remove_checkpoint(old)


def _files_of(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def _require_intact(directory: Path, strategy: Strategy) -> None:
    """Every rank reads its share of the files: together they have looked at every byte."""
    expected: dict[str, str] = json.loads((directory / _DIGESTS).read_text())
    for name in sorted(expected)[strategy.rank :: strategy.world_size]:
        if digest_of_file(directory / name) != expected[name]:
            raise ValueError(f"{name} is not as it was written")


def _require_readable(state: State, strategy: Strategy, directory: Path) -> None:
    """Tensors by name can be divided anew; what a strategy wrote in its own way, only it can read, on as many ranks."""
    before, ranks = state.get("strategy", "ddp"), state.get("world_size")
    if strategy.has_own_checkpoints != (before == "deepspeed"):
        raise InputError(
            f"the checkpoint was written by parallel.strategy: {before}, and {strategy.name} cannot read it",
            remedy=f"resume with parallel.strategy={'deepspeed' if before == 'deepspeed' else 'ddp or fsdp'}",
            where=directory,
        )
    if strategy.has_own_checkpoints and ranks != strategy.world_size:
        raise InputError(
            f"the checkpoint is of {ranks} ranks, and DeepSpeed reads its own on as many only; this start has "
            f"{strategy.world_size}",
            remedy=f"resume on {ranks} devices; checkpoints of parallel.strategy: fsdp go on anywhere",
            where=directory,
        )


def _done() -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(None)
    return future


def _then(first: Future[Any], action: Callable[[], None]) -> Future[Any]:
    """A future that is done when `first` is done and `action` has run after it."""
    both: Future[Any] = Future()

    def run(done: Future[Any]) -> None:
        try:
            done.result()
            action()
        except BaseException as error:  # noqa: BLE001  # handed to whoever waits
            both.set_exception(error)
        else:
            both.set_result(None)

    first.add_done_callback(run)
    return both


def _host_group() -> dist.ProcessGroup:
    """A Gloo group of its own: the writing thread must not mix its messages with the training's."""
    global _GROUP
    if _GROUP is None:
        _GROUP = dist.new_group(backend="gloo")
    return _GROUP


_GROUP: dist.ProcessGroup | None = None


def _damaged(directory: Path, why: object) -> MachineError:
    return MachineError(
        f"the checkpoint is damaged: {str(why) or type(why).__name__}",
        remedy="delete this directory; the run goes on from the one before, or with checkpoint.resume: never",
        where=directory,
    )


def _chain(error: BaseException) -> list[BaseException]:
    found = [error]
    while (cause := found[-1].__cause__ or found[-1].__context__) is not None and cause not in found:
        found.append(cause)
    failures = getattr(error, "failures", None)  # DCP's CheckpointException: rank -> (exception, traceback)
    if isinstance(failures, dict):
        found += [each[0] for each in failures.values()]
    return found


def _innermost(error: BaseException) -> BaseException:
    return _chain(error)[-1]
