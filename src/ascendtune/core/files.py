"""Files that are complete or absent: atomic replacement, regular files, directories that appear whole."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ascendtune.core.errors import InputError, MachineError, translated_disk_errors


class NotRegular(MachineError):
    """A path that should be a regular file is something else, or belongs to another user."""


def open_regular(path: Path, *, follow_links: bool = True) -> BinaryIO:
    """`path.open("rb")` for a regular file.

    Raises:
        OSError: it does not exist, or may not be read.
        MachineError: it is a pipe, a socket, a device or a directory; or a link, where links are not followed.
    """
    # O_NONBLOCK: otherwise opening a pipe waits for a writer. It has no effect on a regular file.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags if follow_links else flags | os.O_NOFOLLOW)
    except ValueError as error:
        # A NUL, or half of a surrogate pair: JSON that names a path may contain both.
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from error
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise not_a_file(path, "it is a symbolic link") from error
        if error.errno in (errno.ENXIO, errno.ENODEV):
            raise not_a_file(path, "it is a socket or a device") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise not_a_file(path, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def not_a_file(path: Path, reason: str) -> NotRegular:
    """The error for a path that is not a regular file that may be read."""
    return NotRegular(
        f"{path.name} is not read: {reason}",
        code="not-a-regular-file",
        remedy="restore the original file, or remove this one",
        where=path,
    )


# Less free space than this is what a failed writer leaves.
_PROBE_BYTES = 1 << 20


def write_atomically(path: Path, content: str | bytes, *, mode: int | None = None) -> None:
    """Write, fsync, rename: a reader sees the old file or the new one, never a partial one.

    Args:
        mode: permission bits of the file (default: 0o666 without the umask).

    Raises:
        MachineError: the disk is full, read-only or not permitted.
    """
    # A file name that is not UTF-8 is decoded to lone surrogates; JSON and YAML can escape them.
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    with translated_disk_errors(path, "writing a file"):
        if not path.name:
            # '' and '/': no name for a temporary file can be derived from them.
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            # Left by a killed process with the same pid; or another user put a link there, to a file of this user.
            temporary.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(temporary, flags, 0o666 if mode is None else mode & 0o600), "wb") as file:
                file.write(data)
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_path(path.parent)


def text_of(path: str | Path) -> str:
    """The content of a file of the operating system; empty if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def is_endless(path: Path) -> bool:
    """Whether reading `path` may never end: a device, a named pipe, or a file of the kernel (/proc/kmsg blocks).

    A pipe of the shell, as in `<(command)`, has no name and ends with its command.

    Raises:
        OSError: `path` does not exist or cannot be inspected.
    """
    facts = path.stat()
    mode = facts.st_mode
    if stat.S_ISFIFO(mode):
        return path.resolve().is_fifo()
    if stat.S_ISREG(mode):
        return facts.st_dev in {each.stat().st_dev for each in (Path("/proc"), Path("/sys")) if each.is_mount()}
    return stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not path.samefile(os.devnull))


def expanded(path: str | Path) -> Path:
    """The path, a leading `~` or `~user` replaced by the home directory.

    Raises:
        InputError: no such user, or one without a home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        user = str(path).partition("/")[0]
        raise InputError(
            f"'{user}' means the home directory of a user that does not exist",
            code="unknown-user",
            remedy=f"write the directory out, or ./{path} for a file of that name",
            where=str(path),
        ) from error


def require_writable(path: Path) -> None:
    """Raise unless `path`, or the directory in which it would be created, is writable. Leaves no file behind.

    Raises:
        MachineError: read-only, not permitted, below a file, or in a file system like /proc.
    """
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    with translated_disk_errors(path):
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(existing, os.W_OK):
            read_only = os.statvfs(existing).f_flag & os.ST_RDONLY
            raise OSError(errno.EROFS if read_only else errno.EACCES, "")
        tempfile.TemporaryFile(dir=existing).close()  # /proc, for one, tells root that it can be written


def probe_disk(directory: Path) -> None:
    """Write 1 MiB and remove it, to find the disk's error after a library failed to write without reporting it.

    Raises:
        OSError: the error of the disk.
    """
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def removed_on_failure(directory: Path) -> Iterator[None]:
    """Remove `directory` if the block fails: a partial directory would only use disk space."""
    try:
        yield
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


@contextmanager
def appearing(target: Path, building: Path, *, replace: bool = False, mode: int = 0o777) -> Iterator[None]:
    """Context that makes the directory `building`, in which its block writes; then flushed and renamed to `target`.

    If the process is killed at any moment, `target` is absent or complete.

    Args:
        building: a path in the same directory as `target`; leftovers of a killed process there are removed.
        replace: whether to remove an existing `target`, once the new directory is on the disk.
        mode: permission bits of the directory, without the umask.

    Raises:
        OSError: a fault of the disk, or `target` exists and `replace` is not given, or `building` cannot be removed:
            another user may have put links there.
    """
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(mode)
    with removed_on_failure(building):
        yield
        sync_tree(building)
        if replace and target.exists():
            remove_directory(target)
        building.rename(target)
        sync_path(target.parent)


def remove_directory(path: Path) -> None:
    """Rename a directory, then delete it: a partially deleted directory never has the name of a complete one."""
    doomed = path.with_name(f".{path.name}.removing")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def unfinished_files(directory: Path) -> list[Path]:
    """Temporary files of `write_atomically` in `directory`: of killed processes, or being written now."""
    return [path for path in directory.glob(".*") if re.fullmatch(r"\..+\.\d+", path.name) and path.is_file()]


def sync_path(path: Path) -> None:
    """Make the content of the file `path`, or renames in the directory `path`, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Make everything in the directory `path` durable: file contents, then the directories that name them."""
    for entry in sorted(path.rglob("*"), reverse=True):
        sync_path(entry)
    sync_path(path)


def walk(directory: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """`os.walk` for a directory of any depth; os.walk of Python 3.11 raises RecursionError for deep ones.

    Directories that cannot be listed are skipped. The caller may sort the names of directories, or remove some.

    Returns:
        For each directory its path, the names of the directories in it, and the names of its other entries, among them
        links to directories: links are not followed.
    """
    waiting = [directory]
    while waiting:
        place = waiting.pop()
        directories, others = list[str](), list[str]()
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                (directories if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
        yield place, directories, others
        waiting += [place / name for name in reversed(directories)]


def digest_of_file(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
