"""The jobs that this user started: one JSON file per job, written when it starts.

Beside `ID.json` there may be a directory `ID`, for the logs of a job that has no run directory.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ascendtune.core import procfs
from ascendtune.core.directories import require_writable_place, state_directory
from ascendtune.core.errors import AscendtuneError, InputError, MachineError, translated_disk_errors
from ascendtune.core.files import probe_disk
from ascendtune.core.log import warn
from ascendtune.core.mask import command_without_secrets
from ascendtune.core.records import read_json_record, write_json
from ascendtune.core.suggest import did_you_mean
from ascendtune.job.members import members_of
from ascendtune.job.record import Job, state_of
from ascendtune.job.spec import JobSpec

_REMEDY = "remove it: the job itself does not need it"
_KEPT_SECONDS = 14 * 24 * 3600
_KEPT_UNKNOWN_SECONDS = 90 * 24 * 3600


def directory_of(job_id: str) -> Path:
    """Directory for the logs of a job without a run directory; it is removed with the job's record."""
    return _directory() / job_id


def lock_of(job_id: str) -> Path:
    """The file that a command locks while it stops the job."""
    return _directory() / f"{job_id}.stopping"


def require_writable_registry() -> None:
    """Raise unless jobs can be registered. Called before anything that takes long.

    Raises:
        MachineError: the registry's disk is full, or it may not be written.
    """
    directory = _directory()
    require_writable_place(directory, "XDG_STATE_HOME")
    try:
        with translated_disk_errors(directory, "registering the job"):
            directory.mkdir(parents=True, exist_ok=True)
            _forget_old(directory)
            probe_disk(directory)
    except MachineError as error:
        remedy = "free space there, or export XDG_STATE_HOME=<a directory on another disk>"
        raise MachineError(error.what, code=error.code, remedy=remedy, where=error.where) from error


def register(
    spec: JobSpec,
    argv: Sequence[str],
    *,
    watched: bool,
    hosts: Sequence[str] = (),
    started_from: str | None = None,
) -> Job:
    """Record that this process is (or is about to become) the job, or its part on this machine.

    Args:
        watched: whether this process stays, and calls `close` at the end.
        hosts: hosts of the processes, if that is not only this machine.
        started_from: the host of the command that started it, if that is another one.

    Raises:
        MachineError: see `require_writable_registry`.
    """
    require_writable_registry()
    this = procfs.stat_of(os.getpid())
    assert this is not None
    job = Job(
        id=spec.id,
        pid=this.pid,
        start_ticks=this.start_ticks,
        boot_id=procfs.boot_id(),
        pid_namespace=procfs.pid_namespace(),
        host=socket.gethostname(),
        hosts=tuple(hosts) or (socket.gethostname(),),
        session=this.session,
        process_group=this.process_group,
        uid=os.getuid(),
        run_dir=spec.run_dir.resolve(),
        argv=tuple(command_without_secrets(argv)),
        nproc=spec.nproc,
        kind=spec.kind,
        device_ids=spec.device_ids,
        watched=watched,
        log_sizes={path.name: path.stat().st_size for path in spec.logs.glob("*.log")},
        started=time.time(),
        started_monotonic=time.monotonic(),
        is_foreign=spec.is_foreign,
        started_from=started_from,
    )
    _write(job)
    return job


def note_devices(job: Job, kind: str, nproc: int) -> None:
    """Record the devices of all hosts of the job, once known. Warns if it cannot."""
    _change(replace(reread(job), kind=kind, nproc=nproc), "on which devices it runs")


def close(job: Job, exit_code: int) -> None:
    """Record the end of the job. Warns if it cannot: the exit code stays the same."""
    job, seconds = reread(job), None
    if job.started_monotonic is not None and job.boot_id == procfs.boot_id():
        seconds = time.monotonic() - job.started_monotonic
    _change(
        replace(job, ended=time.time(), seconds=seconds, exit_code=exit_code),
        "that it has ended, and will call it lost",
    )


def _change(job: Job, what: str) -> None:
    path = _path(job.id)
    if not path.exists():
        return
    try:
        try:
            _write(job)
        except MachineError:
            # A full disk has no space for another file, but for this one.
            _overwrite(path, job)
    except OSError as error:
        warn(f"the registry could not record of {job.id} {what}: {path}: {error.strerror}")


@contextmanager
def closing(job: Job) -> Iterator[Callable[[int], None]]:
    """Context that records the end of the job, for any reason; yields a function for the exit code."""
    codes = [1]
    try:
        yield codes.append
    except AscendtuneError as error:
        codes.append(error.exit_code)
        raise
    finally:
        close(job, codes[-1])


def jobs() -> Iterator[Job]:
    """All jobs, oldest first; files that cannot be read or are damaged are skipped, with a warning."""
    directory = _directory()
    # Not by a pattern, which would silently find nothing in an unreadable directory.
    files = directory.iterdir() if directory.exists() else ()
    read = (_read(path) for path in files if path.suffix == ".json")
    yield from sorted((job for job in read if job is not None), key=_started)


def _started(job: Job) -> float:
    """Seconds since the epoch by the clock as it is now: it may have been set since the job started."""
    if job.started_monotonic is None or job.boot_id != procfs.boot_id():
        return job.started
    return time.time() - (time.monotonic() - job.started_monotonic)


def named(job_id: str) -> Job | None:
    """The job with this id, from its current record; None if there is none."""
    return _read(_path(job_id))


def reread(job: Job) -> Job:
    """The job from its current record."""
    return named(job.id) or job


def find(text: str) -> Job:
    """The job for a text: its name, its id or a prefix of it that contains the name, the id's last four letters, or
    its run's path.

    If several match, it is the one that runs, or of which processes are left; if all are over, the newest of the jobs
    with this name or path.

    Raises:
        InputError: none matches, or several do.
    """
    known = list(jobs())
    matching = _matching(text, known)
    if len(matching) > 1:
        is_part_of_id = any(text in job.id and text != job.name for job in matching)
        running = [job for job in matching if state_of(job) == "running"] or list(filter(members_of, matching))
        matching = running or (matching if is_part_of_id else matching[-1:])
    if not matching:
        raise _unknown(text, known)
    if len(matching) > 1:
        more = "…, " if len(matching) > 5 else ""
        named = ", ".join(job.id for job in matching[-5:])
        what = f"'{text}' may be any of {len(matching)} jobs: {more}{named} (the newest last)"
        raise InputError(what, code="ambiguous-job", remedy="write more of the id")
    return matching[0]


def _matching(text: str, known: Sequence[Job]) -> list[Job]:
    paths = (Path(text).absolute(), Path(text).resolve()) if text else ()
    return (
        [job for job in known if text in (job.id, job.name)]
        or [job for job in known if text.startswith(f"{job.name}-") and job.id.startswith(text)]
        or [job for job in known if text == job.id.rpartition("-")[2]]
        or [job for job in known if job.run_dir in paths]
    )


def _unknown(text: str, known: Sequence[Job]) -> InputError:
    begun = [job.id for job in known if text and job.id.startswith(text)]
    suggestion = did_you_mean(begun[-1] if begun else text, {name for job in known for name in (job.name, job.id)})
    remedy = f"{suggestion} `ascendtune jobs list --all` shows them".lstrip()
    return InputError(f"there is no job '{text}'", code="unknown-job", remedy=remedy)


def _directory() -> Path:
    return state_directory() / "jobs"


def _path(job_id: str) -> Path:
    return _directory() / f"{job_id}.json"


def _write(job: Job) -> None:
    write_json(_path(job.id), job.as_json())


def _overwrite(path: Path, job: Job) -> None:
    content = json.dumps(job.as_json()).encode()
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def _read(path: Path) -> Job | None:
    try:
        job = Job.of_json(read_json_record(path, own=True, remedy=_REMEDY))
        if job.id != path.stem:
            raise ValueError(f"it is named {path.stem} and describes another job")
    except FileNotFoundError:
        return None
    except MachineError as error:
        warn(f"{error.what}: {path}")
        return None
    except OSError as error:
        warn(f"{path.name} cannot be read: {error.strerror}: {path}")
        return None
    except (ValueError, TypeError, KeyError) as error:
        warn(f"{path.name} is damaged: {error}: {path}")
        return None
    return job


def _forget_old(directory: Path) -> None:
    for path in directory.glob("*.json"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _KEPT_SECONDS and _is_over(_read(path)):
                path.unlink()
                lock_of(path.stem).unlink(missing_ok=True)
                shutil.rmtree(directory / path.stem, ignore_errors=True)


def _is_over(job: Job | None) -> bool:
    """Whether its record may be removed; that of another machine without an end is kept for 90 days."""
    if job is None or (state := state_of(job)) in ("ended", "lost"):
        return True
    return state == "unknown" and time.time() - job.started > _KEPT_UNKNOWN_SECONDS
