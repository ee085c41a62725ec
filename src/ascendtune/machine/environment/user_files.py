"""Changes of a user's configuration files: shown first, applied as one step, undone as one step.

Before the first file changes, the old and the new content of all of them are written to the state directory (mode 0600:
they may contain passwords). An interrupted step can be undone, too.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core.directories import state_directory
from ascendtune.core.errors import InputError, MachineError, translated_disk_errors
from ascendtune.core.files import open_regular, write_atomically
from ascendtune.core.records import read_json_record

_MOST_BYTES = 1 << 20
_TEXT = (str, type(None))
_STEP, _STEPS = "step_{:04d}.json", "step_[0-9][0-9][0-9][0-9].json"


@dataclass(frozen=True)
class FileChange:
    """`before`, `after`: the content; None if the file does not exist."""

    path: Path
    before: str | None
    after: str | None


def read_user_file(path: Path) -> str | None:
    """The content of a small file; None if it does not exist. Bytes that are not UTF-8 are kept as surrogates.

    Raises:
        MachineError: it is not a regular file, too large, or cannot be read.
    """
    try:
        with translated_disk_errors(path, "reading a configuration file"), open_regular(path) as file:
            content = file.read(_MOST_BYTES + 1)
    except MachineError as error:
        if error.code == "path-missing":
            return None
        raise
    if len(content) > _MOST_BYTES:
        raise MachineError(
            f"larger than {_MOST_BYTES >> 20} MiB: not a configuration file",
            code="document-too-large",
            remedy="look at the file, and move it away",
            where=path,
        )
    return content.decode(errors="surrogateescape")


def read_if_readable(path: Path) -> str | None:
    """`read_user_file`, but None also without permission to read it, as tools skip such files of the machine."""
    try:
        return read_user_file(path)
    except MachineError as error:
        if error.code in ("permission-denied", "not-a-regular-file"):
            return None
        raise


def home(env: Mapping[str, str]) -> Path:
    home = env.get("HOME", "")
    if not home.startswith("/"):
        raise MachineError("HOME is not set", code="path-missing", remedy="export HOME=<your home directory>")
    return Path(home)


def config_home(env: Mapping[str, str]) -> Path:
    given = env.get("XDG_CONFIG_HOME", "")
    return Path(given) if given.startswith("/") else home(env) / ".config"


def apply(changes: Sequence[FileChange]) -> list[FileChange]:
    """Record the step, then write each file that differs; returns those. A link is followed: its target is written.

    Raises:
        MachineError: a file belongs to another user, or cannot be written.
    """
    real = [FileChange(each.path.resolve(), each.before, each.after) for each in changes if each.before != each.after]
    for each in real:
        _require_own(each.path)
    if real:
        directory = _history()
        number = max((int(path.stem[5:]) for path in directory.glob(_STEPS)), default=0) + 1
        record = {"files": [{"path": str(each.path), "before": each.before, "after": each.after} for each in real]}
        # ASCII: bytes that are not UTF-8 are surrogates here.
        write_atomically(directory / _STEP.format(number), json.dumps(record, indent=1), mode=0o600)
    for each in real:
        _put(each.path, each.after)
    return real


def undo() -> list[Path]:
    """Restore the files of the last step; returns them. Nothing is changed unless all can be restored.

    Raises:
        InputError: there is no step, or a file was changed since.
        MachineError: the record of the step is damaged, or a file cannot be written.
    """
    steps = sorted(_history().glob(_STEPS))
    if not steps:
        raise InputError("nothing to undo", code="nothing-to-undo", remedy="`ascendtune env mirrors show` shows all")
    files = _recorded(steps[-1])
    for each in files:
        if read_user_file(each.path) not in (each.before, each.after):
            raise InputError(
                "this file was changed since, by hand or by another program",
                code="file-differs",
                remedy=f"change it by hand; its earlier content is in {steps[-1]}",
                where=each.path,
            )
    for each in files:
        _put(each.path, each.before)
    steps[-1].unlink()
    return [each.path for each in files]


def _recorded(step: Path) -> list[FileChange]:
    record = read_json_record(step, own=True)
    try:
        files = [(each["path"], each["before"], each["after"]) for each in record["files"]]
        if not all(
            isinstance(path, str) and isinstance(old, _TEXT) and isinstance(new, _TEXT) for path, old, new in files
        ):
            raise TypeError("a path or a content is not text")
    except (KeyError, TypeError) as error:
        raise MachineError(
            f"{step.name} is damaged: {error!r}",
            code="record-damaged",
            remedy="remove it, and change the configuration files by hand",
            where=step,
        ) from error
    return [FileChange(Path(path).resolve(), old, new) for path, old, new in files]


def _history() -> Path:
    directory = state_directory() / "mirrors"
    with translated_disk_errors(directory, "making a directory"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def _require_own(path: Path) -> None:
    """Raise for another user's file: the new file would be this user's, and the other could no longer read it."""
    with translated_disk_errors(path, "reading a configuration file"):
        owner = path.stat().st_uid if path.exists() else os.geteuid()
    if owner != os.geteuid():
        raise MachineError(
            f"this file belongs to another user (uid {owner}); nothing was changed",
            code="owned-by-another-user",
            remedy="run the command as that user; under sudo, check HOME: `sudo -H` sets it to that of the target user",
            where=path,
        )


def _put(path: Path, content: str | None) -> None:
    if content is None:
        with translated_disk_errors(path, "removing a file"):
            path.unlink(missing_ok=True)
        return
    with translated_disk_errors(path, "writing a configuration file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644
    write_atomically(path, content.encode(errors="surrogateescape"), mode=mode)
