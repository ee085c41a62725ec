"""Checkpoints: the whole state of a run, written in the background, complete or absent.

A checkpoint is written to `.step_N.writing`, flushed to disk, and renamed to `step_N` once every rank has written its
part. A run that is killed in between leaves a directory that no reader treats as a checkpoint.

    step_N/state.json                 step, counters, learning state that is not a tensor
    step_N/rng/rank_R.safetensors     the random state of each rank
    step_N/tensors_rank_R.safetensors the tensors, or their parts, that rank R writes (see `tensor_files.py`)
    step_N/zero/                      in their place, DeepSpeed's files (see `content.py`)
    step_N/digests.json               SHA-256 of every other file: a flipped bit is found before the run is resumed

No file is a pickle, except DeepSpeed's, which are read without running code. Other users could still change the weights
or the data, so a run is resumed only from files that no other user may write (`core/ownership.py`), or that are
trusted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from ascendtune.core.checkpoint_names import checkpoints_in_use, is_checkpoint_of, runs_beside
from ascendtune.core.directories import require_free_space
from ascendtune.core.errors import AscendtuneError, InputError, MachineError, disk_fault, translated_disk_errors
from ascendtune.core.files import digest_of_file, is_endless, removed_on_failure, sync_path
from ascendtune.core.foreign_json import read_json_object
from ascendtune.core.records import read_json_record, write_json
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import count_of, format_bytes
from ascendtune.recipe.sections import CheckpointSection
from ascendtune.train.checkpoint.content import CheckpointContent, damaged_checkpoint
from ascendtune.train.checkpoint.random_state import (
    packed_random_state,
    random_file,
    read_random_state,
    restore_random_state,
)
from ascendtune.train.strategy.base import Strategy

State = dict[str, Any]
# Disk space beyond the tensors: for metadata, and for logs that continue to grow.
_SLACK_BYTES = 16 * 1024 * 1024
_DIGESTS = "digests.json"

_READERS = {
    "tensors": "parallel.strategy=ddp or fsdp",
    "zero-0": "parallel.strategy=deepspeed, ZeRO stage 0",
    "zero": "parallel.strategy=deepspeed, ZeRO stage 1 or 2",
    "zero-3": "parallel.strategy=deepspeed, ZeRO stage 3, nothing on nvme",
    "zero-disk": "parallel.strategy=deepspeed, and the same on nvme",
}
"""The recipe that can read each form of checkpoint."""


class Checkpointer:
    """Writes and reads the checkpoints of one run.

    Args:
        content: weights and optimizer state, in the form of the strategy.
        keep: number of checkpoints to keep.
    """

    def __init__(self, run: RunDir, strategy: Strategy, content: CheckpointContent, *, keep: int) -> None:
        self._run = run
        self._strategy = strategy
        self._content = content
        self._keep = keep
        self._pending: Future[Any] | None = None
        self._pending_step = 0
        self._saved_step = 0
        self._complete_step = 0
        self._has_room = False

    def preallocate(self) -> None:
        """Allocate memory for the first checkpoint in the background: new pages take longer than the copy to them.

        Call it after a step, when the optimizer's state exists. Further calls do nothing.
        """
        if not self._has_room:
            self._has_room = True
            self._content.preallocate()

    def save(
        self,
        step: int,
        state: State,
        *,
        protected: int | None = None,
        on_complete: Callable[[int], None] = lambda step: None,
    ) -> None:
        """Copy everything now, and write it in the background. Waits for the previous checkpoint first.

        Does nothing if this step's checkpoint has been written or loaded already: evaluation, schedule and a signal may
        each save one, and a resumed run may stop or evaluate before its first step.

        Args:
            protected: a step whose checkpoint is never removed (the best one).
            on_complete: called with `step` on the main rank, in the writing thread, when the checkpoint is complete.

        Raises:
            MachineError: the disk has too little space, or the previous checkpoint could not be written.
        """
        if step == self._saved_step:
            return
        self.wait()
        directory = self._run.checkpoints / f".step_{step}.writing"
        self._run.require_present()
        # Another rank may fail after the main rank has the reports of all, and renames the directory.
        removed = removed_on_failure(directory) if self._strategy.is_main else nullcontext()
        with translated_disk_errors(directory, "writing a checkpoint"), removed:
            self._require_space()
            for each in (directory, directory / "rng"):
                each.mkdir(exist_ok=True)
            files = {random_file(self._strategy.rank): packed_random_state(self._strategy)}
            if self._strategy.is_main:
                written = {"form": self._content.form, "ranks": self._strategy.world_size}
                files["state.json"] = json.dumps({"step": step, **written, **state}, indent=2).encode()
            pending = self._content.write(directory, files)
        self._pending, self._pending_step, self._saved_step = pending, step, step
        if self._strategy.is_main:
            # Chained, not polled: the checkpoint is renamed as soon as the last byte is written, not at the next step.
            self._pending = _chained(
                pending, lambda digests: self._finish(step, directory, digests, protected, on_complete)
            )

    def poll(self) -> None:
        """Raise the error of the writing thread, if there is one. Does not wait."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written.

        Raises:
            MachineError: the checkpoint could not be written; no `step_N` exists for it.
            Exception: the checkpoint is complete, but `on_complete` raised this.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except Exception as error:
            place = self._run.checkpoint(self._pending_step)
            if self._complete_step == self._pending_step:
                raise
            if self._strategy.is_main:
                shutil.rmtree(self._run.checkpoints / f".step_{self._pending_step}.writing", ignore_errors=True)
            raise disk_fault(error, place, "writing a checkpoint") or MachineError(
                f"the checkpoint of step {self._pending_step} could not be written: {error}",
                code="checkpoint-not-written",
                remedy="check the file system of the run directory",
                where=place,
            ) from error

    def fails_on_all_ranks(self, step: int, error: MachineError) -> bool:
        """Whether all ranks have this `error` of `save(step)` or of the `wait` after it.

        Ranks share the free space that the main rank finds, and report how their writing ended. An error in between,
        such as of a directory, may be of one rank alone, for which the others then wait.
        """
        return error.code == "disk-space-missing" or self._saved_step == step

    def complete_after(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """After an error of the training, for `ExitStack.push`: complete the checkpoint that is being written.

        Call it while stop signals are handled: torchrun sends them when the first rank has ended.
        """
        if isinstance(error, Exception):
            with suppress(Exception):
                self.wait()

    def load(self, directory: Path) -> State:
        """Restore weights, optimizer and random state; return the state that was saved, with `step`.

        Every rank must call this. A checkpoint that is still being written is completed first.

        Raises:
            MachineError: the checkpoint is damaged.
            InputError: it belongs to another model.
        """
        self.wait()
        # The main rank completes it after the others have written their parts.
        self._strategy.barrier()
        with self._strategy.uneven_work("reads the checkpoint"):
            return self._load(directory)

    def _load(self, directory: Path) -> State:
        try:
            require_intact(directory, self._strategy)
            state: State = json.loads((directory / "state.json").read_text())
            random_state = read_random_state(directory, self._strategy)
        except Exception as error:
            raise damaged_checkpoint(directory, error) from error
        if not isinstance(state, dict) or not isinstance(state.get("step"), int):
            raise damaged_checkpoint(directory, "state.json does not name the step")
        self._require_readable(state, directory)
        self._content.read(directory)
        restore_random_state(random_state, self._strategy)
        if is_checkpoint_of(self._run, directory):
            # It is not saved again: two directories cannot be exchanged atomically, and meanwhile there would be no
            # checkpoint.
            self._saved_step = state["step"]
        return state

    def _require_readable(self, state: State, directory: Path) -> None:
        form, ranks = state.get("form"), state.get("ranks")
        if form != self._content.form:
            raise InputError(
                f"the checkpoint has the format '{form}', and parallel.strategy: {self._strategy.name} reads "
                f"'{self._content.form}'",
                code="checkpoint-form-differs",
                remedy=f"resume with {_READERS.get(str(form), 'the recipe that wrote it')}",
                where=directory,
            )
        if not self._content.supports_any_rank_count and ranks != self._strategy.world_size:
            raise InputError(
                f"the number of ranks that wrote the checkpoint is {ranks}, and {self._strategy.name} needs the same; "
                f"this start has {self._strategy.world_size}",
                code="checkpoint-ranks-differ",
                remedy="resume on as many devices; checkpoints of parallel.strategy: fsdp resume on any number",
                where=directory,
            )

    def _require_space(self) -> None:
        """Raise on every rank if the main rank finds too little space, before any rank writes.

        Ranks that checked for themselves would find less space: other ranks write already, or the main rank has not
        removed an older checkpoint yet.
        """
        place, needed = self._run.checkpoints, self._content.size_bytes() + _SLACK_BYTES
        of_main = self._strategy.from_main(str(shutil.disk_usage(place).free))
        remedy = "free space, set checkpoint.keep lower, or put run_dir on another disk"
        needs = f"a checkpoint needs {format_bytes(needed)}"
        require_free_space(place, needed, needs, remedy=remedy, free=int(of_main))

    def _finish(
        self,
        step: int,
        directory: Path,
        digests: dict[str, str],
        protected: int | None,
        on_complete: Callable[[int], None],
    ) -> None:
        # Each rank has flushed its files on its own host; the directory is flushed together with this last one.
        write_json(directory / _DIGESTS, digests)
        directory.rename(self._run.checkpoint(step))
        sync_path(self._run.checkpoints)
        self._complete_step = step
        on_complete(step)
        self._prune(protected)

    def _prune(self, protected: int | None) -> None:
        """Remove all but the newest `keep` checkpoints, the protected one, and those that runs beside resume from."""
        if old := [step for step in self._run.checkpoint_steps()[: -self._keep] if step != protected]:
            in_use = checkpoints_in_use(runs_beside(self._run))
            for step in old:
                if self._run.checkpoint(step).resolve() not in in_use:
                    self._run.remove_checkpoint(step)


def require_intact(directory: Path, strategy: Strategy) -> None:
    """Compare the digests of this rank's share of the files; all ranks together read every byte.

    Raises:
        ValueError: a file differs or is missing.
        OSError: the list of digests cannot be read.
        MachineError: the list is not a regular file, or damaged.
    """
    expected = read_json_record(directory / _DIGESTS)
    for name in sorted(expected)[strategy.rank :: strategy.world_size]:
        # A pipe is not opened: that would wait for a writer. A link may lead to /proc/kmsg, whose reader waits.
        path = directory / name
        if not path.is_file() or is_endless(path) or digest_of_file(path) != expected[name]:
            raise ValueError(f"{name} is not as it was written")


def _chained(first: Future[dict[str, str]], action: Callable[[dict[str, str]], None]) -> Future[Any]:
    """A future that is done once `first` is done and `action` has run with its result."""
    both: Future[Any] = Future()

    def run(done: Future[dict[str, str]]) -> None:
        try:
            action(done.result())
        except BaseException as error:  # noqa: BLE001  # raised again by `wait`
            both.set_exception(error)
        else:
            both.set_result(None)

    first.add_done_callback(run)
    return both


def step_of(checkpoint: Path) -> int:
    """The step of a checkpoint; 0 if it is damaged, which loading reports."""
    try:
        step = read_json_object(checkpoint / "state.json").get("step")
    except (AscendtuneError, OSError):
        return 0
    return step if isinstance(step, int) else 0


def require_space_for_run(
    run: RunDir,
    section: CheckpointSection,
    *,
    checkpoint: int,
    model: int,
    written: int,
    done: int = 0,
    gathered: int = 0,
) -> None:
    """Compare the free space with the largest size of checkpoints and final model together.

    Args:
        checkpoint: bytes of one checkpoint.
        model: bytes of the final model.
        written: number of checkpoints that will be written until the end.
        done: the step that a resumed run starts from.
        gathered: bytes of the file of weights that the host's memory has no room for, beside the final model.

    Raises:
        MachineError: there is too little space.
    """
    existing = [each for each in run.checkpoint_steps() if each <= done]
    at_once = min(section.at_once, len(existing) + written)
    needed = model + gathered
    if written:
        needed += at_once * checkpoint - _size_of_files(run.checkpoints)
        # `save` also needs space for a whole one; a resumed run removes older ones only when its first one is complete.
        needed = max(needed, checkpoint) + _SLACK_BYTES
    existing_text = f", of which {len(existing)} {'is' if len(existing) == 1 else 'are'} there" if existing else ""
    of_model = f"a model of {format_bytes(model)}"
    if gathered:
        of_model += f"; {format_bytes(gathered)} for those of its weights that the host's memory has no room for"
    parts = (
        f"{count_of(at_once, 'checkpoint')} of {format_bytes(checkpoint)} at once{existing_text}; {of_model}; "
        f"{format_bytes(_SLACK_BYTES)} for logs and other files"
        if written
        else of_model
    )
    can_keep_fewer = written and section.model_copy(update={"keep": 1}).at_once < at_once
    require_free_space(
        run.path,
        needed,
        f"this run needs {format_bytes(needed)} ({parts})",
        remedy=f"free space, {'lower checkpoint.keep, ' if can_keep_fewer else ''}or put run_dir on another disk",
    )


def _size_of_files(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
