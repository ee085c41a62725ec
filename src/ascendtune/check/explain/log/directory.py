"""Finds the logs in a directory, and joins rotated ones with their current log."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ascendtune.check.explain.log.compressed import SUFFIXES as COMPRESSED
from ascendtune.core.errors import InputError
from ascendtune.core.files import walk
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import format_bytes

_SUFFIXES = (".log", ".out", ".err", ".txt")
_IS_LOG = re.compile(
    rf"\S.*(?:{'|'.join(map(re.escape, _SUFFIXES))}|\.std(?:out|err))$"
    r"|.*\.(?:log|out|err)[.-][\w.-]+$"  # marks of rotation, ranks, hosts
    r"|.*\.[oe]\d+(?:\.\d+|-\d+)?$"  # PBS, Grid Engine
    r"|(?:.*[a-z])?log\.\d+$"  # workerlog.0 of Paddle
    r"|(?:[\w-]*[_-])?(?:log|std_?(?:out|err)|output|console|nohup|messages|syslog|dmesg)$",
    re.IGNORECASE | re.DOTALL,
)
"""Names of logs, without the suffixes of compression."""
_IS_OTHER = re.compile(
    r".*\.(?:sw[a-p]|lock|pid|json|yaml|yml|toml|idx|md5|sha\d+|py|sh|png|csv|html|pt|pth|bin|npy|tmp)$|\.nfs",
    re.IGNORECASE,
)
_HAS_NO_SUFFIX = re.compile(
    r"(?![.]|[A-Z]+$|(?:Make|Docker|Container|Rake|Gem|Pip|Jenkins)file)(?:[^.]+|.+\.(?:[a-z]*\d+|o|e))$"
)
"""Names without a suffix: logs or other files."""
_IS_COPY = re.compile(r"(?P<of>.+?)(?:~|\.(?:bak|orig|save|backup))\d*$")
"""Backup of an editor."""
_ROTATED = re.compile(
    r"(?P<of>.+?)[.-](?:(?P<number>[1-9]\d{0,3})|(?P<date>20\d\d-?\d\d-?\d\d(?:[T_.-]?[\d:.-]+)?|1\d{9})|(?P<old>old|prev(?:ious)?))$"
)
_NO_DIGIT = re.compile(r"\D")
_MOST_ENTRIES = 100_000
"""Most files and directories below a directory of logs; a whole file system has millions."""
_MOST_LOGS = 20_000
_MOST_UNNAMED = 100
_MOST_BYTES = 20 << 30
"""Size of all logs of a directory: five minutes of one core."""
_MOST_EARLIER_BYTES = 2 << 30
"""Size of all earlier parts of a directory's logs: half a minute. The newest are read first."""
_RATIO = 10
"""Assumed compression ratio."""

IS_COPY = "a copy"
IS_UNNAMED = "not named like a log"
IS_NOT_TEXT = "not text"
IS_LINK = "a link to another directory"
IS_CLOSED = "it may not be read"
IS_OLD = "older than the earlier parts that are read"


@dataclass(frozen=True)
class Log:
    name: str
    start: int = 0
    """Offset in bytes."""
    earlier: tuple[str, ...] = ()
    """Files with the earlier parts, the oldest first."""


@dataclass(frozen=True)
class Unread:
    """A file of a directory that may be a log."""

    name: str
    why: str
    """A sentence of `phrases`; or a command that shows the file's content."""
    may_matter: bool = True
    """Whether it may contain a failure of this job."""

    @classmethod
    def after(cls, error: InputError | PermissionError, name: str) -> Unread:
        """The file that could not be read because of `error`."""
        if isinstance(error, PermissionError):
            return cls(name, IS_CLOSED)
        if error.code == "not-a-log":
            return cls(name, IS_NOT_TEXT, may_matter=False)
        return cls(name, f"`{error.remedy}`" if error.code == "log-compressed" else error.what)


def logs_in(directory: Path) -> tuple[list[Log], list[Unread]]:
    """Find the logs in a directory and below it, such as a log directory of CANN or a scheduler.

    Raises:
        InputError: there is none, all belong to runs, or the directory contains more than the logs of a training.
    """
    files = _look_through(directory)
    unread = files.unread
    if not files.logs and 0 < len(files.unnamed) <= _MOST_UNNAMED:
        return [Log(str(path)) for path in sorted(files.unnamed)], unread
    if not files.logs:
        raise InputError(
            f"neither a run directory nor one with logs ({', '.join(f'*{suffix}' for suffix in _SUFFIXES)})",
            code="no-logs-in-directory",
            remedy="name the files: ascendtune explain DIRECTORY/*",
            where=directory,
        )
    _require_other_than_runs(directory, files.logs)
    beside = {log.parent for log in files.logs}
    unread += [Unread(str(path), IS_UNNAMED, may_matter=False) for path in files.unnamed if path.parent in beside]
    logs = _once(files.logs)
    copies = [path for path in logs if (of := _original(path)) is not None and of in logs]
    unread += [Unread(str(path), IS_COPY, may_matter=False) for path in copies]
    joined, too_old = _joined({path: state for path, state in logs.items() if path not in copies})
    return joined, sorted([*unread, *too_old], key=lambda each: each.name)


@dataclass
class _Files:
    """Files of a directory that are, or may be, logs."""

    logs: dict[Path, os.stat_result] = field(default_factory=dict)
    unnamed: list[Path] = field(default_factory=list)
    """Files without a suffix."""
    unread: list[Unread] = field(default_factory=list)


def _look_through(directory: Path) -> _Files:
    files, entries, size, top = _Files(), 0, 0, directory.resolve()
    for place, directories, names in walk(directory):
        entries += len(directories) + len(names)
        closed = (place / name for name in directories if not os.access(place / name, os.R_OK | os.X_OK))
        files.unread += [Unread(str(path), IS_CLOSED) for path in closed]
        for path in (place / name for name in names):
            if is_log(path.name) and path.is_file():
                with suppress(OSError):
                    files.logs[path] = path.stat()
                    size += files.logs[path].st_size if _mark_of(path) is None else 0
            elif _HAS_NO_SUFFIX.match(path.name) and path.is_file():
                files.unnamed.append(path)
            elif path.is_symlink() and path.is_dir() and not path.resolve().is_relative_to(top):
                files.unread.append(Unread(str(path), IS_LINK, may_matter=False))
        if entries > _MOST_ENTRIES or len(files.logs) > _MOST_LOGS or size > _MOST_BYTES:
            raise InputError(
                f"the directory holds more than the logs of a training: over {_MOST_ENTRIES:,} files, "
                f"{_MOST_LOGS:,} logs or {format_bytes(_MOST_BYTES)} of logs",
                code="directory-too-large",
                remedy="give the directory of one training, or name the files",
                where=directory,
            )
    return files


def _require_other_than_runs(directory: Path, logs: Iterable[Path]) -> None:
    """Raise if all logs belong to runs: the end of a run is in its record, not only in its logs."""
    runs = sorted(each for each in directory.iterdir() if _is_run(each))
    if runs and all(not {*path.parents}.isdisjoint(runs) for path in logs):
        raise InputError(
            f"{len(runs)} {'run lies' if len(runs) == 1 else 'runs lie'} in this directory; name the one to explain",
            code="directory-of-runs",
            remedy=f"ascendtune explain {shlex.quote(str(runs[-1]))}; `ascendtune runs list` shows how each ended",
            where=directory,
        )


def is_log(name: str) -> bool:
    """Whether a file is a log by its name."""
    copy = _IS_COPY.match(name)
    name = _unpacked_name(copy["of"] if copy else name)
    return _IS_LOG.match(name) is not None and not _IS_OTHER.match(name)


def _unpacked_name(name: str) -> str:
    return next((name.removesuffix(each) for each in COMPRESSED if name.endswith(each)), name)


def _original(path: Path) -> Path | None:
    copy = _IS_COPY.match(path.name)
    return path.with_name(copy["of"]) if copy else None


def _mark_of(path: Path) -> re.Match[str] | None:
    return _ROTATED.match(_unpacked_name(path.name))


def _once(logs: dict[Path, os.stat_result]) -> dict[Path, os.stat_result]:
    """The files in the order of their names; a file with several names is listed under the first."""
    files = {(logs[path].st_dev, logs[path].st_ino): path for path in sorted(logs, reverse=True)}
    return {path: logs[path] for path in sorted(files.values())}


def _joined(files: dict[Path, os.stat_result]) -> tuple[list[Log], list[Unread]]:
    """The logs with their earlier parts, and the parts that are too old to be read."""
    parts: dict[Path, list[Path]] = {path: [] for path in files}
    for path in files:
        if (mark := _mark_of(path)) is not None and (current := path.with_name(mark["of"])) in parts:
            parts[current].append(path)
    for current, earlier in parts.items():
        earlier.sort(key=_age)
        if not _were_rotated(current, earlier, files):
            earlier.clear()
    joined = {part for earlier in parts.values() for part in earlier}
    left, old, kept = _MOST_EARLIER_BYTES, set[Path](), dict[Path, list[Path]]()
    # The newest of all logs first.
    for generation in range(max(map(len, parts.values()))):
        for current, earlier in parts.items():
            if len(earlier) <= generation or current in old:
                continue
            part = earlier[generation]
            left -= files[part].st_size * (_RATIO if part.name.endswith(COMPRESSED) else 1)
            if left < 0:
                old.add(current)
            else:
                kept.setdefault(current, []).append(part)
    logs = [
        Log(str(path), earlier=tuple(str(part) for part in reversed(kept.get(path, []))))
        for path in parts
        if path not in joined
    ]
    read = {name for log in logs for name in log.earlier}
    return logs, [Unread(str(part), IS_OLD, may_matter=False) for part in joined if str(part) not in read]


def _age(part: Path) -> tuple[int, int]:
    """Orders the parts of a log, the newest first."""
    mark = _mark_of(part)
    if mark is None or mark["old"]:
        return 0, 0
    return (1, int(mark["number"])) if mark["number"] else (2, -int(_NO_DIGIT.sub("", mark["date"]).ljust(20, "0")))


def _were_rotated(current: Path, earlier: Sequence[Path], files: dict[Path, os.stat_result]) -> bool:
    """Whether `earlier` are parts of one log, and not logs of ranks that have numbers after a common name.

    Logs of ranks are written at the same time.
    """
    if current.with_name(f"{current.name}.0") in files:
        return False
    times = [files[path].st_mtime_ns for path in (current, *earlier)]
    are_numbers = all((mark := _mark_of(part)) is not None and mark["number"] for part in earlier)
    is_packed = any(part.name.endswith(COMPRESSED) for part in earlier)
    return not are_numbers or is_packed or all(newer > older for newer, older in pairwise(times))


def _is_run(directory: Path) -> bool:
    try:
        return RunDir(directory).run_json.is_file()
    except OSError:
        return False
