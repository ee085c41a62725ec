"""Start the ranks through `job`, and collect their notes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.check.comm.notes import RankNotes, notes_path, read_notes
from ascendtune.core.errors import InputError, translated_disk_errors
from ascendtune.job.backend.local import start
from ascendtune.job.backend.ssh import start as start_on_hosts
from ascendtune.job.nodes.cluster_spec import ClusterSpec
from ascendtune.job.result import JobResult
from ascendtune.job.spec import JobSpec, new_id
from ascendtune.machine.visible import Kind

WORKER = (sys.executable, "-P", "-m", "ascendtune.check.comm.worker")
STEP_WORKER = (sys.executable, "-P", "-m", "ascendtune.check.comm.step_worker")


@dataclass(frozen=True)
class RankGroup:
    """The processes that a command starts: one per device."""

    kind: Kind
    count: int
    ids: tuple[str, ...] | None
    """Value of the visibility variable; None: the variable is not changed."""
    names: tuple[str, ...]
    """The device of each rank in messages; empty if there is nothing to add, as on the CPU."""
    hosts: ClusterSpec | None = None
    """The hosts of the ranks, if they are not on this machine alone."""

    def label(self, rank: int) -> str:
        return f"rank {rank} ({self.names[rank]})" if self.names else f"rank {rank}"

    def labels(self, ranks: Sequence[int]) -> str:
        return ", ".join(map(self.label, ranks))


@dataclass(frozen=True)
class RankResults:
    """The results of ranks that have all exited, successfully or not."""

    ranks: RankGroup
    directory: Path
    outcome: JobResult
    notes: tuple[RankNotes, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every rank has finished its work."""
        return all(each.is_done for each in self.notes)

    @property
    def backend(self) -> str:
        """The collective backend recorded by rank 0; "no backend" if it failed before that."""
        return self.notes[0].last("backend") or "no backend"

    def log(self, rank: int) -> Path | None:
        """The output file of a rank; None for rank 0, whose output goes to the terminal."""
        return self.directory / "log" / f"rank_{rank}.log" if rank else None


def run_ranks(work: dict[str, Any], ranks: RankGroup, directory: Path) -> RankResults:
    """Run `work` on every rank, and wait for all of them.

    Args:
        work: the worker's task, see `worker.py`; one with a "run" is for `step_worker.py`.
        directory: for notes and logs; it must be writable for every rank.

    Raises:
        InputError: the directory contains files other than notes of an earlier run.
        MachineError: it cannot be written, or a process cannot be started.
    """
    with translated_disk_errors(directory, "preparing the directory for the notes of the ranks"):
        _prepare_directory(directory)
    worker = STEP_WORKER if "run" in work else WORKER
    argv = (*worker, ranks.kind, str(directory.resolve()), json.dumps(work))
    # torch's own report of a rank that times out repeats this program's.
    quiet = {"TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")}
    spec = JobSpec(argv, directory, ranks.count, ranks.kind, ranks.ids, quiet, id=new_id("comm"))
    outcome = start(spec) if ranks.hosts is None else start_on_hosts(spec, ranks.hosts)
    return RankResults(ranks, directory, outcome, read_notes(directory, ranks.count))


def _prepare_directory(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    first_notes = notes_path(directory, 0)
    if any(directory.iterdir()) and not first_notes.exists():
        raise InputError(
            "the directory is not empty, and was not created by an earlier `ascendtune comm`",
            code="directory-not-empty",
            remedy="give a new or an empty directory",
            where=directory,
        )
    shutil.rmtree(directory / "log", ignore_errors=True)
    for notes in directory.glob("rank_*.jsonl"):
        notes.unlink(missing_ok=True)
    first_notes.touch()
