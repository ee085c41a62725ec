"""Directories that ascendtune writes besides run directories: their places, and how entries are built in them."""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ascendtune.core.errors import InputError, MachineError, translated_disk_errors
from ascendtune.core.files import NotRegular, require_writable, walk
from ascendtune.core.locks import file_lock
from ascendtune.core.units import format_bytes

WRITTEN_BY = "Written by `ascendtune"
"""Near the beginning of each file that a command writes where the user says: only such files are overwritten."""
_MARKED_BYTES = 4096
_GZIP = b"\x1f\x8b"


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/ascendtune`: prepared tokens and downloads; safe to delete.

    Raises:
        MachineError: this user has no home directory.
    """
    return _xdg("XDG_CACHE_HOME", ".cache")


def state_directory() -> Path:
    """`$XDG_STATE_HOME/ascendtune`: the job registry.

    Raises:
        MachineError: this user has no home directory.
    """
    return _xdg("XDG_STATE_HOME", ".local/state")


def require_writable_place(directory: Path, variable: str) -> None:
    """Raise unless `directory` exists or can be created, and is writable.

    Raises:
        MachineError: the remedy names the variable that moves it elsewhere.
    """
    try:
        require_writable(directory)
        with translated_disk_errors(directory, "making a directory"):
            directory.mkdir(parents=True, exist_ok=True)
    except MachineError as error:
        remedy = f"export {variable}=<a directory that can be written>"
        raise MachineError(error.what, code=error.code, remedy=remedy, where=error.where or directory) from error


def require_place_for(file: Path) -> None:
    """Raise unless a file can be written as `file`, in a directory that exists. Leaves no file behind.

    Raises:
        InputError: the file exists, and was not written by a command of ascendtune.
        MachineError: the directory does not exist, is read-only or not permitted, or `file` is a directory, a device
            or a pipe.
    """
    with translated_disk_errors(file):
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        if file.exists() and not file.is_file():
            # Root would put a file in the place of /dev/null.
            raise NotRegular(
                "this is a device or a pipe", code="not-a-regular-file", remedy="give the name of a file", where=file
            )
        if not file.parent.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
        require_own_output(file)
    require_writable(file.parent)


def require_own_output(file: Path) -> None:
    """Raise if `file` exists, is not empty, and was not written by a command of ascendtune.

    Raises:
        InputError: it would be overwritten.
    """
    if not file.exists() or file.stat().st_size == 0:
        return
    with file.open("rb") as opened:
        beginning = opened.read(_MARKED_BYTES)
    if beginning.startswith(_GZIP):
        with suppress(zlib.error):
            beginning = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(beginning, _MARKED_BYTES)
    if WRITTEN_BY.encode() not in beginning:
        raise InputError(
            "this file exists, and was not written by this command",
            code="path-exists",
            remedy="give another name, or remove the file",
            where=file,
        )


def require_free_space(directory: Path, needed: int, what: str, *, remedy: str, free: int | None = None) -> None:
    """Raise unless the disk of `directory`, which exists, has room for `needed` bytes.

    Args:
        what: the beginning of the message, such as "the merged model needs 14.9 GiB".
        free: free bytes, if the caller has determined them; None: determine them now.

    Raises:
        MachineError: less is free.
    """
    if free is None:
        free = shutil.disk_usage(directory).free
    if free < needed:
        what = f"{what}, the disk has {format_bytes(free)} left"
        raise MachineError(what, code="disk-space-missing", remedy=remedy, where=directory)


def _xdg(variable: str, default: str) -> Path:
    # The XDG specification says that relative paths are invalid and must be ignored.
    given = Path(os.environ.get(variable, ""))
    if given.is_absolute():
        return given / "ascendtune"
    try:
        return Path.home() / default / "ascendtune"
    except RuntimeError as error:
        # Containers often run as a number that has no entry in /etc/passwd.
        raise MachineError(
            f"HOME is not set, and user {os.getuid()} has no home directory",
            code="path-missing",
            remedy="export HOME=<a directory that can be written>",
        ) from error


_PREFIX = ".building-"


def building_of(directory: Path, name: str) -> Path:
    """The path at which the entry `name` of `directory` is built."""
    return directory / f"{_PREFIX}{name}"


def lock_of(directory: Path, name: str) -> Path:
    """The file whose lock is held while `name` is built."""
    return directory / f".{name}.lock"


def abandoned(directory: Path) -> Iterator[Path]:
    """Half-built entries of `directory` whose process has ended.

    Raises:
        MachineError: a lock cannot be tried.
    """
    for building in sorted(directory.glob(f"{_PREFIX}*")):
        with file_lock(_lock_for(building), wait=False) as is_free:
            if is_free:
                yield building


def remove_abandoned(building: Path) -> None:
    """Remove a directory that `abandoned` returned, unless another process has begun to build it since.

    Raises:
        MachineError: it cannot be removed.
    """
    with file_lock(_lock_for(building), wait=False) as is_free:
        if is_free and building.exists():
            with translated_disk_errors(building, "removing half-built data"):
                shutil.rmtree(building)


def _lock_for(building: Path) -> Path:
    return lock_of(building.parent, building.name.removeprefix(_PREFIX))


class DiskUsage(NamedTuple):
    """The space of a directory on the disk; a file with several names counts once."""

    size_bytes: int
    newest: float
    """Time of the newest change below it, in seconds since the epoch; 0 if the directory is missing."""


def disk_usage(directory: Path) -> DiskUsage:
    """The space of a directory and of everything below it; links are not followed, unreadable entries do not count."""
    size, newest, counted = 0, 0.0, set[tuple[int, int]]()
    for place, _, others in walk(directory):
        for name in ("", *others):
            try:
                facts = (place / name).lstat()
            except OSError:
                continue
            newest = max(newest, facts.st_mtime)
            if (facts.st_dev, facts.st_ino) not in counted:
                counted.add((facts.st_dev, facts.st_ino))
                size += facts.st_blocks * 512
    return DiskUsage(size, newest)
