"""What is noted about a job, and what has become of it: running, ended, lost."""

from __future__ import annotations

import socket
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from ascendtune.core import procfs
from ascendtune.core.errors import MachineError
from ascendtune.core.rundir import RunDir

State = Literal["running", "ended", "lost", "unknown"]
"""`lost`: its process has gone, and nobody noted how it ended. `unknown`: it is on another machine."""


@dataclass(frozen=True)
class Job:
    """What was noted when a job started, and how it ended, where that is known."""

    id: str
    pid: int
    """Of the process that started the others, or of the only one."""
    start_ticks: int
    """When that process started, in clock ticks since boot: with `pid`, `boot_id` and `pid_namespace` unique."""
    boot_id: str
    pid_namespace: str
    host: str
    hosts: tuple[str, ...]
    """Where its processes run; `host` is where the first of them does."""
    session: int
    process_group: int
    uid: int
    run_dir: Path
    argv: tuple[str, ...]
    """To be shown: without the secrets that a command line may hold."""
    nproc: int
    kind: str
    device_ids: tuple[str, ...] | None
    watched: bool
    """A process stays beside the workers and notes the end; without it, the run directory tells."""
    log_sizes: dict[str, int]
    """How long the logs were before: what stands there is of earlier attempts."""
    started: float
    """Seconds since the epoch, as `ended`."""
    is_foreign: bool = False
    """Rank 0 has a log, too."""
    ended: float | None = None
    exit_code: int | None = None
    started_from: str | None = None
    """The host whose command has started it here, too; None where it was started on `host`."""

    @property
    def name(self) -> str:
        return self.id.rpartition("-")[0]

    @property
    def is_local(self) -> bool:
        """All its processes run on `host`, as far as whoever started it knows."""
        return self.hosts == (self.host,)

    @property
    def logs(self) -> Path:
        return self.run_dir / "log"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "run_dir": str(self.run_dir)}

    @staticmethod
    def of_json(content: dict[str, Any]) -> Job:
        """What `as_json` gave, with the end as it is known by now.

        Raises:
            KeyError, TypeError, ValueError: something is missing, or is of another form.
        """
        known = {field.name: content[field.name] for field in fields(Job) if field.name in content}
        for name in ("hosts", "argv", "device_ids"):
            known[name] = None if known[name] is None else tuple(known[name])
        return _with_its_end(Job(**{**known, "run_dir": Path(known["run_dir"])}))


def state_of(job: Job) -> State:
    """What has become of the job, now."""
    if job.ended is not None:
        return "ended"
    alive = is_alive(job)
    if alive is None:
        return "unknown"
    return "running" if alive else "lost"


def is_alive(job: Job) -> bool | None:
    """Whether the job's process runs; None when its pids mean nothing here: another machine, another container."""
    if job.host != socket.gethostname():
        return None
    if job.boot_id != procfs.boot_id():
        return False
    if job.pid_namespace != procfs.pid_namespace():
        return None
    stat = procfs.stat_of(job.pid)
    return stat is not None and stat.start_ticks == job.start_ticks


def _with_its_end(job: Job) -> Job:
    """What a worker without a watcher wrote about its end into the run directory."""
    if job.watched or job.ended is not None or is_alive(job):
        return job
    record = _record_of(job)
    attempts = record.get("attempts") or []
    mine = [each for each in attempts if each.get("pid") == job.pid and each.get("started", 0) >= job.started]
    if not mine or mine[-1].get("ended") is None:
        return job
    last = mine[-1]
    code = 0 if last.get("state") == "finished" else None
    if code is None and last is attempts[-1]:
        code = (record.get("exit_cause") or {}).get("exit_code")
    return replace(job, ended=last["ended"], exit_code=code)


def _record_of(job: Job) -> dict[str, Any]:
    run = RunDir(job.run_dir)
    try:
        return run.read() if run.run_json.is_file() else {}
    except MachineError:
        # One damaged run must not hide the others.
        return {}
