"""The run directory: the contract between rooms. All code that reads or writes facts of a run uses this class."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from ascendtune.core import procfs
from ascendtune.core.attempt_time import seconds_since
from ascendtune.core.errors import InputError, MachineError, translated_disk_errors
from ascendtune.core.files import open_regular, remove_directory, unfinished_files, write_atomically
from ascendtune.core.records import parsed_record, read_json_lines, read_json_record, write_json
from ascendtune.core.suggest import run_suggestion

State = Literal["created", "running", "finished", "failed", "stopped"]
SCHEMA_VERSION = 1
JOB_MARK = "ASCENDTUNE_JOB"
"""Environment variable with the job's id in every process of the job: processes are found when their parents end."""
STACKS_SIGNAL = signal.SIGUSR1
"""Makes a worker write its Python stacks. Not used by torch, torchrun, DeepSpeed and torch_npu, like the next one."""
FORCED_STACKS_SIGNAL = signal.SIGUSR2
"""For a worker that has not answered STACKS_SIGNAL."""
_TAIL_BYTES = 64 * 1024
_RESERVED_BYTES = 128 * 1024
"""Several times the size of run.json."""
# The form that `checkpoint` writes; other digits than ASCII's and leading zeros would name another directory.
_CHECKPOINT = re.compile(r"step_(0|[1-9][0-9]{0,17})")
_LONGEST_STATE = 32
_KINDS = {
    "exit_cause": dict, "resolved": dict, "versions": dict, "plan": dict, "config_hashes": dict, "data_hash": str,
    "recipe_hash": str,
}  # fmt: skip
"""Optional keys of run.json and their types."""


def hash_of_recipe(recipe_yaml: str) -> str:
    """The hash of recipe.yaml in run.json: 16 hexadecimal digits."""
    return hashlib.sha256(recipe_yaml.encode()).hexdigest()[:16]


def _fault_of(record: dict[str, Any]) -> str | None:
    """The fault in the content of a run.json; None if it is valid."""
    state, attempts = record.get("state"), record.get("attempts") or []
    if not isinstance(state, str) or len(state) > _LONGEST_STATE:
        return "its state is missing"
    if not isinstance(attempts, list) or not all(isinstance(each, dict) for each in attempts):
        return "its attempts are not a list of objects"
    wrong = (key for key, kind in _KINDS.items() if not isinstance(record.get(key), kind | None))
    return next((f"its {key} has a wrong type" for key in wrong), None)


class RunDir:
    """Paths and records of one run. It keeps no file open; any number of readers may read a live run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def origins(self) -> Path:
        return self.path / "origins.json"

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def data_report(self) -> Path:
        return self.path / "data.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        return self.path / "eval.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def dumps(self) -> Path:
        """Dumps of single steps, for `ascendtune align`: `step-0000003/rank_0.jsonl`."""
        return self.path / "dump"

    @property
    def profile(self) -> Path:
        """Profiles of the steps in the recipe's `profile.steps`: traces, `rank_N.trace.json.gz`, and their
        summaries."""
        return self.path / "profile"

    @property
    def start_weights(self) -> Path:
        """Hashes of the weights before the first step: `{"hash", "ranks", "parameters": {name: hash}}`."""
        return self.path / "start_weights.json"

    @property
    def logs(self) -> Path:
        return self.path / "log"

    @property
    def heartbeats(self) -> Path:
        return self.path / "heartbeat"

    def stacks(self, rank: int) -> Path:
        """The file to which a worker appends its Python stacks on STACKS_SIGNAL."""
        return self.heartbeats / f"rank_{rank}.stacks"

    @property
    def model(self) -> Path:
        """The final weights in Hugging Face format: a whole model, or an adapter when the tuner is lora or oft."""
        return self.path / "model"

    def reference(self, part: str, key: str) -> Path:
        """Log-probabilities under the reference model, a little-endian fp64 for every row of a part (train or eval).

        Args:
            key: of the data and the model; another reference has another file.
        """
        return self.path / f"reference_{part}_{key[:16]}.f64"

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    @classmethod
    def open(cls, path: str | Path) -> RunDir:
        """An existing run.

        Raises:
            InputError: `path` is not a run directory.
        """
        run = cls(path)
        if not run.run_json.is_file():
            is_there = run.path.exists()
            usual = "give the directory that `ascendtune train` printed; `ascendtune runs list` shows them"
            raise InputError(
                "not a run directory: run.json is missing" if is_there else "no such run directory",
                code="not-a-run-directory",
                remedy=usual if is_there else run_suggestion(run.path, usual),
                where=run.path,
            )
        return run

    def create(self, recipe_yaml: str, origins: dict[str, str], facts: dict[str, Any]) -> None:
        """Make the directory with its recipe and a run.json in state `created`.

        Raises:
            MachineError: the place cannot be written.
        """
        with translated_disk_errors(self.path, "creating the run directory"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for directory in (self.path, self.checkpoints, self.logs, self.heartbeats):
                directory.mkdir(0o755, exist_ok=True)
        self.rewrite_recipe(recipe_yaml, origins)
        write_json(self.run_json, {"schema_version": SCHEMA_VERSION, "state": "created", "attempts": [], **facts})

    def rewrite_recipe(self, recipe_yaml: str, origins: dict[str, str]) -> None:
        """Replace recipe.yaml and origins.json, which the next attempt uses."""
        write_atomically(self.recipe, recipe_yaml)
        write_json(self.origins, origins)

    def has_metrics(self) -> bool:
        """Whether any step was recorded."""
        return self.metrics.is_file() and self.metrics.stat().st_size > 0

    def read_if_any(self) -> dict[str, Any]:
        """`read`; empty if there is no run.json."""
        return self.read() if self.run_json.is_file() else {}

    def read(self) -> dict[str, Any]:
        """run.json.

        Raises:
            MachineError: the file is damaged.
        """
        remedy = "restore run.json from a copy; to train again, start a new run with another name"
        record = read_json_record(self.run_json, remedy=remedy)
        if fault := _fault_of(record):
            what = f"run.json is damaged: {fault}"
            raise MachineError(what, code="record-damaged", remedy=remedy, where=self.run_json)
        return record

    def read_data_report(self) -> dict[str, Any] | None:
        """data.json, or None if it does not exist yet.

        Raises:
            MachineError: the file is damaged.
        """
        return read_json_record(self.data_report) if self.data_report.is_file() else None

    def require_present(self) -> None:
        """Raise if the directory has been removed: the cause of every later failure.

        Raises:
            MachineError: it has been removed.
        """
        if not self.run_json.is_file():
            raise MachineError(
                "the run directory was removed while the run trained",
                code="run-directory-removed",
                remedy="run the same command again: it starts over; to resume instead, first restore the "
                "directory from a copy",
                where=self.path,
            )

    def require_started_for(self, start_id: str, record: dict[str, Any]) -> None:
        """Raise unless recipe.yaml is the recipe that the start wrote (see `Claim.start_id`).

        Args:
            record: run.json.

        Raises:
            MachineError: another start has rewritten it, or a user has edited it.
        """
        is_of_start = record.get("start_id") == start_id
        if not is_of_start or record.get("recipe_hash") != hash_of_recipe(self.recipe.read_text("utf-8")):
            raise MachineError(
                "recipe.yaml is not the recipe that this process was started for",
                code="recipe-replaced",
                remedy="run the same command again: it writes recipe.yaml again",
                where=self.recipe,
            )

    @property
    def _reserved(self) -> Path:
        return self.path / ".reserved"

    def update(self, **changes: Any) -> None:
        """Replace top-level keys of run.json. Only one process writes: rank 0, or the command that has the lock."""
        write_json(self.run_json, {**self.read(), **changes})

    def begin_attempt(self, facts: dict[str, Any]) -> int:
        """Record a new attempt in run.json, state `running`; returns its number, from 1."""
        record = self.read()
        number = len(record["attempts"]) + 1
        this = procfs.stat_of(os.getpid())
        process = {
            "pid": os.getpid(),
            "start_ticks": this.start_ticks if this else None,
            "boot_id": procfs.boot_id(),
            "pid_namespace": procfs.pid_namespace(),
        }
        began = {"job": os.environ.get(JOB_MARK), "started": time.time(), "monotonic": time.monotonic()}
        record["attempts"].append({"attempt": number, **began, **process, **facts})
        write_json(self.run_json, {**record, "state": "running", "exit_cause": None, "ended_because": None})
        self._reserve()
        return number

    def end_attempt(self, state: State, cause: dict[str, Any] | None = None, **changes: Any) -> None:
        """Record the end of the newest attempt.

        Args:
            cause: why it did not finish, see `exit_cause`.
            changes: other top-level keys of run.json to change.
        """
        record = self.read()
        if record["attempts"]:
            code = cause["exit_code"] if cause else 0
            newest = record["attempts"][-1]
            ends = {"ended": time.time(), "seconds": seconds_since(newest)}
            newest.update(ends, state=state, exit_code=code, step=self.last_step())
        ended = {**record, **changes, "state": state, "exit_cause": cause}
        try:
            write_json(self.run_json, ended)
        except MachineError:
            if not self._reserved.exists():
                raise
            self._reserved.unlink(missing_ok=True)
            write_json(self.run_json, ended)
        self._reserved.unlink(missing_ok=True)

    def _reserve(self) -> None:
        """Reserve the disk space that the end of the attempt needs: a full disk can then be recorded as the cause."""
        with suppress(OSError), self._reserved.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _RESERVED_BYTES)

    def last_metrics(self) -> dict[str, Any] | None:
        """The newest complete line of metrics.jsonl, without reading the others.

        Raises:
            MachineError: it is damaged.
        """
        return next(iter(self.newest_metrics(1)), None)

    def newest_metrics(self, count: int) -> list[dict[str, Any]]:
        """At most `count` of the newest complete lines of metrics.jsonl, oldest first, without reading the others.

        Raises:
            MachineError: a line is damaged.
        """
        if not self.metrics.is_file():
            return []
        with open_regular(self.metrics) as file:
            begin = max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES)
            file.seek(begin)
            # The first line is incomplete if the reading begins within it, the last one without a newline.
            lines = file.read().split(b"\n")[1 if begin else 0 : -1]
        return [parsed_record(line, self.metrics) for line in lines[-count:]]

    def last_step(self) -> int | None:
        """The step of the newest record; None if there is none, or it is damaged."""
        try:
            step = (self.last_metrics() or {}).get("step")
        except MachineError:
            return None
        return step if type(step) is int and 0 <= step < 1 << 31 else None

    def read_metrics(self) -> Iterator[dict[str, Any]]:
        return read_json_lines(self.metrics)

    def read_evaluations(self) -> Iterator[dict[str, Any]]:
        return read_json_lines(self.evaluations)

    def comparable_evaluations(self) -> list[dict[str, Any]]:
        """Evaluations on the same rows as the newest one: a resumed run may have other evaluation data."""
        evaluations = list(self.read_evaluations())
        return [each for each in evaluations if each.get("data_hash") == evaluations[-1].get("data_hash")]

    def drop_records_after(self, step: int, evaluated_step: int) -> None:
        """Drop records after `step`, so that no step is recorded twice after a resume.

        Args:
            evaluated_step: the last evaluation before the checkpoint; later ones are repeated.
        """
        for path, last in ((self.metrics, step), (self.evaluations, evaluated_step)):
            if path.exists():
                with open_regular(path) as file:
                    content = file.read()
                # Records are in the order of steps: of hundreds of thousands only the last ones are parsed.
                lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
                while lines and parsed_record(lines[-1], path)["step"] > last:
                    lines.pop()
                if len(kept := b"".join(lines)) < len(content):
                    write_atomically(path, kept)

    def checkpoint_steps(self) -> list[int]:
        """Steps of the complete checkpoints, oldest first. A checkpoint gets its name only when it is complete."""
        if not self.checkpoints.is_dir():
            return []
        names = (_CHECKPOINT.fullmatch(entry.name) for entry in self.checkpoints.iterdir() if entry.is_dir())
        return sorted(int(name[1]) for name in names if name)

    def remove_checkpoints_after(self, step: int) -> None:
        """Remove later checkpoints when a run resumes from an earlier step."""
        for later in self.checkpoint_steps():
            if later > step:
                self.remove_checkpoint(later)

    def remove_checkpoint(self, step: int) -> None:
        remove_directory(self.checkpoint(step))

    def remove_unfinished(self) -> None:
        """Delete incomplete files and directories of a killed process. Only for the holder of `lock`."""
        for directory in self.checkpoints.glob(".step_*"):
            shutil.rmtree(directory, ignore_errors=True)
        for directory in self.path.glob(".model.*"):
            shutil.rmtree(directory, ignore_errors=True)
        for file in unfinished_files(self.path):
            file.unlink(missing_ok=True)
        if self.run_json.is_file() and self.read()["state"] != "running":
            self._reserved.unlink(missing_ok=True)

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step_{step}"
