"""Files that are complete or absent: atomic replacement, append-only lines."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from ascendtune.core.errors import InputError, MachineError, translated_disk_errors

_RECORD_BYTES = 64 << 20
"""Upper bound of a record's size: run.json of a thousand attempts has a few MB."""


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
            raise _not_a_file(path, "it is a symbolic link") from error
        if error.errno in (errno.ENXIO, errno.ENODEV):
            raise _not_a_file(path, "it is a socket or a device") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_a_file(path, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_record(path: Path, *, own: bool = False) -> bytes:
    """The content of a small file that ascendtune wrote.

    Args:
        own: whether it must belong to this user.

    Raises:
        OSError: it does not exist, or may not be read.
        MachineError: it is not a regular file, too large, or another user's.
    """
    with open_regular(path, follow_links=False) as file:
        if own and os.fstat(file.fileno()).st_uid != os.geteuid():
            raise _not_a_file(path, "it belongs to another user")
        content = file.read(_RECORD_BYTES + 1)
    if len(content) > _RECORD_BYTES:
        raise _not_a_file(path, f"it is larger than {_RECORD_BYTES >> 20} MiB")
    return content


def _not_a_file(path: Path, reason: str) -> NotRegular:
    return NotRegular(
        f"{path.name} is not read: {reason}",
        code="not-a-regular-file",
        remedy="restore the original file, or remove this one",
        where=path,
    )


# Less free space than this is what a failed writer leaves.
_PROBE_BYTES = 1 << 20
_LONGEST_LINE = 64 << 20
_MOST_DIGITS = 40
"""Most digits of an integer in a record: more than ascendtune ever writes."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_MANY_DIGITS = re.compile(rb"\d{%d}" % (_MOST_DIGITS + 1))


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
    found = path.stat()
    mode = found.st_mode
    if stat.S_ISFIFO(mode):
        return path.resolve().is_fifo()
    if stat.S_ISREG(mode):
        return found.st_dev in {each.stat().st_dev for each in (Path("/proc"), Path("/sys")) if each.is_mount()}
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


def json_for_programs(content: Any, *, indent: int | None = 2) -> str:
    """`content` as JSON that every parser reads.

    Numbers that are not finite are "NaN", "Infinity" or "-Infinity". Bytes of file names that are not UTF-8 are the
    escapes of lone surrogates, which Python reads back as the same file name.
    """
    try:
        text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        # Python writes them without quotes, which JSON does not permit.
        read = json.loads(json.dumps(content, default=str), parse_constant=str)
        text = json.dumps(read, indent=indent, ensure_ascii=False)
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def write_json(path: Path, content: Any) -> None:
    """`write_atomically` for JSON: indented, UTF-8, keys in their order."""
    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def finite_or_none(value: float) -> float | None:
    """JSON cannot express NaN and infinities: they become None."""
    return value if math.isfinite(value) else None


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


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of an append-only file. A last line without newline is an incomplete write: it is ignored.

    Raises:
        MachineError: another line is damaged, or the path is not a regular file.
    """
    if not path.exists():
        return
    with open_regular(path) as file:
        for number, line in enumerate(iter(partial(file.readline, _LONGEST_LINE), b""), 1):
            if len(line) == _LONGEST_LINE:
                raise _damaged(f"{path}:{number}", "the line is too long", "restore it from a copy, or remove it")
            if not line.endswith(b"\n"):
                return
            yield parsed_record(line, f"{path}:{number}")


def parsed_record(
    text: str | bytes, where: str | Path, *, remedy: str = "restore it from a copy, or remove it"
) -> dict[str, Any]:
    """A JSON object from a file that ascendtune wrote.

    Raises:
        MachineError: it is damaged.
    """
    try:
        has_many_digits = _MANY_DIGITS.search(text if isinstance(text, bytes) else text.encode(errors="replace"))
        # A custom parser of integers would be slower, and few records have so many digits.
        record = json.loads(text, parse_int=_integer if has_many_digits else None)
        if not isinstance(record, dict):
            raise ValueError("not a JSON object")
    except ValueError as error:
        raise _damaged(where, str(error), remedy) from error
    except RecursionError as error:
        raise _damaged(where, "it is nested too deeply", remedy) from error
    return record


def _integer(digits: str) -> int:
    """The integer; raises ValueError if it does not fit into a float."""
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"it has a number of {len(digits):,} digits")
    return int(digits)


def _damaged(where: str | Path, reason: str, remedy: str) -> MachineError:
    name = Path(where).name.partition(":")[0]
    return MachineError(f"{name} is damaged: {reason}", code="record-damaged", remedy=remedy, where=where)


class LineWriter:
    """Appends JSON lines. `write` passes one whole line to the operating system; `close` makes the lines durable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with translated_disk_errors(path, "opening a log"):
            self._file = path.open("a+b", buffering=0)
            self._drop_cut_off_line()

    def write(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        with translated_disk_errors(self.path, "appending a line"):
            before = os.fstat(self._file.fileno())
            if before.st_nlink == 0:
                raise MachineError(
                    f"{self.path.name} was removed while it was written",
                    code="file-removed",
                    remedy="run the command again, and do not change the directory while it runs",
                    where=self.path,
                )
            if self._file.write(line) != len(line):
                # A short write to a regular file means that the disk is full.
                os.ftruncate(self._file.fileno(), before.st_size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        with translated_disk_errors(self.path, "appending a line"):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if not self._file.closed:
            self.sync()
            self._file.close()

    def _drop_cut_off_line(self) -> None:
        """Cut off an incomplete last line of a killed writer: the next record must not continue it."""
        self._file.seek(0)
        content = self._file.read() or b""
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            os.ftruncate(self._file.fileno(), whole)
