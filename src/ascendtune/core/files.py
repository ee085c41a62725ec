"""Files that are complete or absent: atomic replacement, append-only lines, locks that die with their process."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ascendtune.core.errors import MachineError, translated_disk_errors

# A writer that gave up in the middle of a block has left less than this.
_PROBE_BYTES = 1 << 20


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write, fsync, rename: a reader sees the old file or the new one, never a part.

    Raises:
        MachineError: the disk is full, read-only or not permitted.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with translated_disk_errors(path, "writing a file"):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def is_endless(path: Path) -> bool:
    """Whether to read `path` may never end: a device, or a pipe with a name, into which nobody may ever write.

    A pipe of the shell, as in `<(command)`, has no name: somebody is writing into it.

    Raises:
        OSError: nothing is there, or it may not be looked at.
    """
    mode = path.stat().st_mode
    if stat.S_ISFIFO(mode):
        return path.resolve().is_fifo()
    return stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not path.samefile(os.devnull))


def require_writable(path: Path) -> None:
    """Raise unless `path`, or the directory in which it would be made, can be written. Writes nothing.

    Raises:
        MachineError: read-only, not permitted, or below a file.
    """
    there = path.absolute()
    while not there.exists():
        there = there.parent
    with translated_disk_errors(path, "looking for a place to write"):
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(there, os.W_OK):
            read_only = os.statvfs(there).f_flag & os.ST_RDONLY
            raise OSError(errno.EROFS if read_only else errno.EACCES, "")


def require_place_for(file: Path) -> None:
    """Raise unless a file can be written as `file`, in a directory that is there. Writes nothing.

    Raises:
        MachineError: no such directory, read-only, not permitted, or a directory of that name.
    """
    with translated_disk_errors(file, "looking for a place to write"):
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        if not file.parent.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    require_writable(file.parent)


def ask_disk(directory: Path) -> None:
    """Write a little and remove it: for after a library has failed to write and does not tell what the disk said.

    Raises:
        OSError: what the disk says now.
    """
    probe = directory / f".probe.{os.getpid()}"
    try:
        with probe.open("wb") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        probe.unlink(missing_ok=True)


@contextmanager
def removed_on_failure(directory: Path) -> Iterator[None]:
    """Remove `directory` when what happens inside fails: half written, it would only keep the disk full."""
    try:
        yield
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def unfinished_files(directory: Path) -> list[Path]:
    """What `write_atomically` left in `directory` when its process was killed; or is writing there just now."""
    return [path for path in directory.glob(".*") if re.fullmatch(r"\..+\.\d+", path.name) and path.is_file()]


def write_json(path: Path, content: Any) -> None:
    """`write_atomically` for JSON: indented, UTF-8, keys in the order given."""
    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def sync_directory(path: Path) -> None:
    """Make renames inside `path` durable; given a file, its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Make everything in the directory `path` durable: file contents, then the directories that name them."""
    for entry in sorted(path.rglob("*"), reverse=True):
        sync_directory(entry)
    sync_directory(path)


def digest_of_file(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of an append-only file. A last line without newline is a write that was cut off: it is ignored.

    Raises:
        MachineError: another line is damaged.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            yield parsed_record(line, f"{path}:{number}")


def parsed_record(
    text: str | bytes, where: str | Path, *, remedy: str = "bring it back, or remove it"
) -> dict[str, Any]:
    """A JSON object out of a file of ours.

    Raises:
        MachineError: it is damaged.
    """
    try:
        record = json.loads(text)
        if not isinstance(record, dict):
            raise ValueError("not a JSON object")
    except ValueError as error:
        name = Path(where).name.partition(":")[0]
        raise MachineError(f"{name} is damaged: {error}", remedy=remedy, where=where) from error
    return record


class LineWriter:
    """Appends JSON lines. Each `write` hands one whole line to the operating system; `close` makes them durable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with translated_disk_errors(path, "opening a log"):
            self._file = path.open("a+b", buffering=0)
            self._drop_cut_off_line()

    def write(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        with translated_disk_errors(self.path, "appending a line"):
            before = os.fstat(self._file.fileno()).st_size
            if self._file.write(line) != len(line):
                # A short write to a regular file means that the disk is full.
                os.ftruncate(self._file.fileno(), before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        with translated_disk_errors(self.path, "appending a line"):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if not self._file.closed:
            self.sync()
            self._file.close()

    def _drop_cut_off_line(self) -> None:
        """A writer that was killed may leave half a line; the next record must not continue it."""
        self._file.seek(0)
        content = self._file.read() or b""
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            os.ftruncate(self._file.fileno(), whole)


@contextmanager
def file_lock(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold an exclusive lock on `path`; the kernel drops it when the process dies, however it dies.

    Args:
        path: the lock file; it is created and stays.
        wait: block until the lock is free; otherwise yield False at once when somebody holds it.
    """
    with translated_disk_errors(path, "taking a lock"):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
