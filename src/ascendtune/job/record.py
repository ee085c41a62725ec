"""The record of a job, and its state: running, ended, lost."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ascendtune.core import procfs
from ascendtune.core.errors import MachineError
from ascendtune.core.foreign_json import is_number
from ascendtune.core.rundir import RunDir

_LAST_SECOND = 1e11
"""Upper bound of seconds since the epoch: no clock shows a later time."""
_LARGEST_NUMBER = 1 << 63

State = Literal["running", "ended", "lost", "unknown"]
"""`lost`: its process has ended without a record of how. `unknown`: it is on another machine."""


@dataclass(frozen=True)
class Job:
    """The record of a job: its start, and its end if known."""

    id: str
    pid: int
    """Pid of the process that started the others, or of the only one."""
    start_ticks: int
    """Start time of that process, in clock ticks since boot: unique with `pid`, `boot_id` and `pid_namespace`."""
    boot_id: str
    pid_namespace: str
    host: str
    hosts: tuple[str, ...]
    """Hosts of its processes; `host` is that of the first one."""
    session: int
    process_group: int
    uid: int
    run_dir: Path
    argv: tuple[str, ...]
    """For display: without secrets that a command line may contain."""
    nproc: int
    kind: str
    device_ids: tuple[str, ...] | None
    watched: bool
    """Whether a process stays beside the workers and records the end; otherwise the run directory contains it."""
    log_sizes: dict[str, int]
    """Length of each log before the job started, in bytes: the part before is of earlier attempts."""
    started: float
    """Seconds since the epoch, as `ended`."""
    is_foreign: bool = False
    """Whether rank 0 also has a log."""
    ended: float | None = None
    exit_code: int | None = None
    started_monotonic: float | None = None
    """Seconds since boot, for durations, because the clock may be set meanwhile."""
    seconds: float | None = None
    """From start to end; None while it runs, and if no process was left to record the end."""
    started_from: str | None = None
    """The host of the command that started it here; None if that is `host`."""

    @property
    def name(self) -> str:
        return self.id.rpartition("-")[0]

    @property
    def is_local(self) -> bool:
        """Whether all its processes run on `host`, as the command that started it knows."""
        return self.hosts == (self.host,)

    @property
    def logs(self) -> Path:
        return self.run_dir / "log"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "run_dir": str(self.run_dir)}

    @staticmethod
    def of_json(content: dict[str, Any]) -> Job:
        """The job from the result of `as_json`, completed with its end if known by now.

        Raises:
            KeyError, TypeError, ValueError: a key is missing, or has an invalid value.
        """
        known = {field.name: content[field.name] for field in fields(Job) if field.name in content}
        for name in ("hosts", "argv", "device_ids"):
            known[name] = None if known[name] is None else tuple(known[name])
        job = Job(**{**known, "run_dir": Path(known["run_dir"])})
        kinds = get_type_hints(Job)
        for name in known:
            if not _is_of_type(getattr(job, name), kinds[name]):
                raise ValueError(f"{name} has the wrong type")
        if job.pid <= 0:
            raise ValueError(f"no process has the number {job.pid}")
        return _with_its_end(job)


def state_of(job: Job) -> State:
    """The state of the job, now."""
    if job.ended is not None:
        return "ended"
    alive = is_alive(job)
    if alive is None:
        return "unknown"
    return "running" if alive else "lost"


def is_alive(job: Job) -> bool | None:
    """Whether the job's process runs; None if its pids have no meaning here: on another machine, in another
    container."""
    return procfs.is_alive(job.pid, job.start_ticks, boot=job.boot_id, namespace=job.pid_namespace, host=job.host)


def seconds_of(job: Job) -> float | None:
    """Elapsed seconds of a job, up to its end; None if it was lost, or only a clock that was set back could tell."""
    state = state_of(job)
    if job.seconds is not None or state == "lost":
        return job.seconds
    if state == "running" and job.started_monotonic is not None:
        return time.monotonic() - job.started_monotonic
    seconds = (job.ended or time.time()) - job.started
    return seconds if seconds >= 0 else None


def attempt_of(job: Job, record: dict[str, Any]) -> dict[str, Any] | None:
    """The job's last attempt; None if it began none.

    Args:
        record: run.json, which also lists attempts of other jobs at the run.
    """
    attempts = [each for each in record.get("attempts") or [] if _is_of_type(each.get("started"), float)]
    # A lost job has no end that would separate it from the attempts of later jobs.
    attempts = [each for each in attempts if each.get("job") in (None, job.id)]
    own = [each for each in attempts if _is_during(job, each)]
    if not job.watched:
        # A clock may be set meanwhile, and a container reuses pids: the start time of the process decides.
        own = [each for each in own if "start_ticks" not in each and each.get("pid") == job.pid]
        own += [each for each in attempts if (each.get("pid"), each.get("start_ticks")) == (job.pid, job.start_ticks)]
    return own[-1] if own else None


def _is_during(job: Job, attempt: dict[str, Any]) -> bool:
    """Whether an attempt was begun between the start and the end of the job."""
    began, since = attempt.get("monotonic"), job.started_monotonic
    if attempt.get("boot_id") == job.boot_id and isinstance(began, int | float) and since is not None:
        # On the same host: a clock that was set meanwhile has no effect.
        return since <= began <= (float("inf") if job.seconds is None else since + job.seconds)
    return bool(job.started <= attempt["started"] <= (job.ended or time.time()))


def _is_of_type(value: object, kind: Any) -> bool:
    """Whether a field of `Job` may have `value`."""
    inside = get_args(kind)
    if get_origin(kind) is UnionType:
        return any(_is_of_type(value, each) for each in inside)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is_of_type(each, inside[0]) for each in value)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(
            _is_of_type(name, inside[0]) and _is_of_type(each, inside[1]) for name, each in value.items()
        )
    if kind is float:
        return isinstance(value, int | float) and 0 <= value < _LAST_SECOND
    if kind is int:
        return type(value) is int and abs(value) < _LARGEST_NUMBER
    return isinstance(value, kind)


def _with_its_end(job: Job) -> Job:
    """The job with the end that a worker without a watcher has recorded in the run directory."""
    if job.watched or job.ended is not None or is_alive(job):
        return job
    attempt = attempt_of(job, _record_of(job))
    if attempt is None or not _is_of_type(attempt.get("ended"), float):
        return job
    code, began, took = (attempt.get(name) for name in ("exit_code", "monotonic", "seconds"))
    seconds = None
    if job.started_monotonic is not None and is_number(began, 0) and is_number(took, 0):
        seconds = began + took - job.started_monotonic
    return replace(job, ended=attempt["ended"], seconds=seconds, exit_code=code if _is_of_type(code, int) else None)


def _record_of(job: Job) -> dict[str, Any]:
    try:
        return RunDir(job.run_dir).read_if_any()
    except MachineError:
        # One damaged run must not hide the others.
        return {}
