"""The claim on a run directory: one start owns it, from before its first write until its last process has ended.

A claim is the kernel's lock on the file `.claim` in the directory. `fork` and `exec` keep it, so it passes to the
worker without a gap; it is released when the last process that has it ends, also by SIGKILL. The file names the holder.

On a network file system the lock reaches other hosts (NFS 4, NFS 3 with locks, Lustre with `flock`) or it does not
(`nolock`, `localflock`). The holder therefore touches the file every few seconds as well: a claim of another host that
is neither locked nor released counts as abandoned only when the file has not been touched for a while.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ascendtune.core import procfs
from ascendtune.core.errors import MachineError, translated_disk_errors
from ascendtune.core.locks import is_opened_from, try_lock
from ascendtune.core.log import say

CLAIM_FILE = ".claim"
_DESCRIPTOR = "ASCENDTUNE_CLAIM"
"""Environment variable that names the locked descriptor to the program that this process becomes."""
_TOUCH_EVERY_SECONDS = 4.0
_ABANDONED_SECONDS = 20.0
"""Several touches, plus the delay of an attribute cache."""
_LONG_AGO_SECONDS = 600.0
_RECORD_BYTES = 4096


class Claim:
    """The right of this process, and of processes that it forks or becomes, to write in `directory`.

    Attributes:
        start_id: is passed to the worker, which refuses to train if another start has claimed the directory.
    """

    def __init__(self, directory: Path, descriptor: int, start_id: str, created: Sequence[Path] = ()) -> None:
        self.directory = directory
        self.start_id = start_id
        self._descriptor = descriptor
        self._created = tuple(created)
        """Parent directories that were created for the claim, the nearest first."""
        self._held_by = 0
        self._stop = threading.Event()
        self._close = weakref.finalize(self, _close, descriptor, self._stop)

    @classmethod
    def take(cls, directory: Path, *, on_full_disk: bool = False) -> Self:
        """Claim `directory`; it is created if it does not exist.

        Args:
            on_full_disk: to free space, claim it by the lock alone where the holder cannot be recorded; another start
                could not record itself, either.

        Raises:
            MachineError: another process has claimed it, or it cannot be written.
        """
        with translated_disk_errors(directory, "claiming the run directory"):
            missing = [path for path in directory.parents if not path.exists()]
            descriptor = _locked(directory)
            try:
                record = _read(descriptor)
                if record and record.get("boot_id") != procfs.boot_id() and _is_touched(directory, record):
                    raise _taken(directory, record)
            except BaseException:
                os.close(descriptor)
                raise
            claim = cls(directory, descriptor, secrets.token_hex(8), created=missing)
            try:
                claim.hold()
            except MachineError as error:
                if not on_full_disk or error.code != "disk-full":
                    raise
            return claim

    @classmethod
    def inherited(cls, directory: Path, start_id: str) -> Self | None:
        """The claim that the parent process handed over to this program; None if the parent process keeps it.

        Raises:
            MachineError: another start has claimed the directory meanwhile.
        """
        descriptor = os.environ.pop(_DESCRIPTOR, "")
        with translated_disk_errors(directory, "looking for the claim"):
            record = _record_of(directory)
            if record.get("start_id") != start_id:
                raise MachineError(
                    "another start has claimed the run directory since this process was started",
                    code="run-claimed-meanwhile",
                    remedy="let the other start train, or run the command again with another name: name=OTHER",
                    where=directory,
                )
            if not descriptor.isdecimal() or not is_opened_from(directory / CLAIM_FILE, int(descriptor)):
                return None
            claim = cls(directory, int(descriptor), start_id)
            claim.hold()
            return claim

    def hold(self) -> None:
        """Record this process as the holder. Must be called again after `os.fork`, which does not copy threads."""
        if self._held_by == os.getpid():
            return
        self._held_by = os.getpid()
        os.set_inheritable(self._descriptor, False)
        record = {
            "start_id": self.start_id,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "boot_id": procfs.boot_id(),
            "user": os.getuid(),
            "since": time.time(),
        }
        content = json.dumps(record).encode()
        with translated_disk_errors(self.directory, "claiming the run directory"):
            os.pwrite(self._descriptor, content, 0)
            os.ftruncate(self._descriptor, len(content))
        threading.Thread(target=_keep_touching, args=(self.directory, self._stop), daemon=True).start()

    def hand_over(self) -> None:
        """Pass the claim to the program that this process becomes. Child processes do not get it.

        That program closes a descriptor of its own: it may run in this interpreter, which closes the other one.
        """
        descriptor = os.dup(self._descriptor)
        os.set_inheritable(descriptor, True)
        os.environ[_DESCRIPTOR] = str(descriptor)

    def release(self) -> None:
        """Release the directory; it is removed if nothing was written into it. A second call does nothing.

        A process that has passed the claim on to its child only closes its own descriptor.
        """
        if not self._close.alive:
            return
        with suppress(OSError):
            is_ours = _read(self._descriptor).get("pid") == os.getpid()
            if is_ours and is_opened_from(self.directory / CLAIM_FILE, self._descriptor):
                if [each.name for each in self.directory.iterdir()] == [CLAIM_FILE]:
                    (self.directory / CLAIM_FILE).unlink()
                    for path in (self.directory, *self._created):
                        path.rmdir()
                else:
                    os.ftruncate(self._descriptor, 0)
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def is_unfinished_start(directory: Path) -> bool:
    """Whether a start has claimed `directory` and has not written run.json, or not yet."""
    return (directory / CLAIM_FILE).is_file() and not (directory / "run.json").exists()


def _locked(directory: Path) -> int:
    """Open and lock the claim file; returns its descriptor."""
    while True:
        # Only the user may write here, whatever the umask: the recipe in it decides what is trained.
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(0o755, exist_ok=True)
        try:
            descriptor = os.open(
                directory / CLAIM_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode=0o644
            )
        except FileNotFoundError:
            continue  # a start that wrote nothing has just removed the directory
        try:
            if not try_lock(descriptor, directory):
                raise _taken(directory, _read(descriptor))
            if is_opened_from(directory / CLAIM_FILE, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_touched(directory: Path, record: dict[str, Any]) -> bool:
    """Whether the holder, on another host, touches the file within the waiting time."""
    before = _touched_at(directory)
    if _time_at(directory) - before > _LONG_AGO_SECONDS:
        return False
    say(
        f"process {record.get('pid')} on {record.get('host')} has claimed {directory} and not released it; waiting "
        f"{_ABANDONED_SECONDS:.0f} s for it to respond"
    )
    deadline = time.monotonic() + _ABANDONED_SECONDS
    while time.monotonic() < deadline:
        time.sleep(1)
        if _touched_at(directory) != before:
            return True
    return False


def _touched_at(directory: Path) -> float:
    # The file is opened because NFS asks the server for its times only then.
    with (directory / CLAIM_FILE).open("rb") as file:
        return os.fstat(file.fileno()).st_mtime


def _time_at(directory: Path) -> float:
    """The time of the clock that dates files in `directory`: a file server has its own clock."""
    with tempfile.TemporaryFile(dir=directory) as file:
        return os.fstat(file.fileno()).st_mtime


def _keep_touching(directory: Path, stop: threading.Event) -> None:
    while not stop.wait(_TOUCH_EVERY_SECONDS):
        with suppress(OSError):
            os.utime(directory / CLAIM_FILE)


def _close(descriptor: int, stop: threading.Event) -> None:
    stop.set()
    os.close(descriptor)


def _record_of(directory: Path) -> dict[str, Any]:
    try:
        descriptor = os.open(directory / CLAIM_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return {}
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> dict[str, Any]:
    """The record of the holder; empty if the claim was released."""
    try:
        record = json.loads(os.pread(descriptor, _RECORD_BYTES, 0))
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _taken(directory: Path, record: dict[str, Any]) -> MachineError:
    holder = f": {record['pid']} on {record['host']}" if {"pid", "host"} <= record.keys() else ""
    is_elsewhere = record.get("boot_id", procfs.boot_id()) != procfs.boot_id()
    return MachineError(
        f"this run is being trained by another process{holder}",
        code="run-in-use",
        remedy="wait for it, or give this one another name: name=OTHER"
        + (f"; when that host is gone for good, remove {directory / CLAIM_FILE}" if is_elsewhere else ""),
        where=directory,
    )
