"""JSON that ascendtune writes and reads: records in small files, append-only lines."""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ascendtune.core.errors import MachineError, translated_disk_errors
from ascendtune.core.files import not_a_file, open_regular, write_atomically

_RECORD_BYTES = 64 << 20
"""Upper bound of a record's size: run.json of a thousand attempts has a few MB."""
_LONGEST_LINE = 64 << 20
_MOST_DIGITS = 40
"""Most digits of an integer in a record: more than ascendtune ever writes."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_MANY_DIGITS = re.compile(rb"\d{%d}" % (_MOST_DIGITS + 1))


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
            raise not_a_file(path, "it belongs to another user")
        content = file.read(_RECORD_BYTES + 1)
    if len(content) > _RECORD_BYTES:
        raise not_a_file(path, f"it is larger than {_RECORD_BYTES >> 20} MiB")
    return content


def read_json_record(
    path: Path, *, own: bool = False, remedy: str = "restore it from a copy, or remove it"
) -> dict[str, Any]:
    """The JSON object in a small file that ascendtune wrote.

    Args:
        own: whether the file must belong to this user.

    Raises:
        OSError: it does not exist, or may not be read.
        MachineError: it is damaged, not a regular file, too large, or another user's.
    """
    return parsed_record(read_record(path, own=own), path, remedy=remedy)


def record_if_readable(path: Path) -> dict[str, Any]:
    """`read_json_record`; empty if the file does not exist or cannot be read."""
    try:
        return read_json_record(path)
    except (OSError, MachineError):
        return {}


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
