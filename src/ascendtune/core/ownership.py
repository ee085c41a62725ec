"""Checks of ownership and permissions, like ssh's StrictModes, before a run resumes from files.

Files that other users put into a run directory cannot run code, but the run would train on them. A parent directory may
be writable by all users, as `/data` often is: a run directory that another user puts there belongs to that user, and is
refused.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ascendtune.core.errors import MachineError, translated_disk_errors

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def restrict_umask() -> None:
    """From now on, only the user may write files that this process and its children create."""
    os.umask(os.umask(_OTHERS_WRITE) | _OTHERS_WRITE)


@contextmanager
def restricted_umask() -> Iterator[None]:
    """`restrict_umask` for the duration of the block."""
    before = os.umask(_OTHERS_WRITE)
    os.umask(before | _OTHERS_WRITE)
    try:
        yield
    finally:
        os.umask(before)


def require_own(directory: Path, *parts: Path, remedy: str = "") -> None:
    """Raise unless `directory` and `parts` belong to this user or root, and no other user may write them.

    Args:
        parts: files in `directory`, or directories with their whole content. Missing ones are skipped.
        remedy: an alternative to changing the owner.

    Raises:
        MachineError: a file belongs to another user, or other users may write it.
    """
    remedy = f", or {remedy}" if remedy else ""
    with translated_disk_errors(directory, "checking the owner of these files"):
        owners, keeps_modes = _owners_of_new_files(directory)
        for path in (directory, *(each for part in parts for each in (part, *part.rglob("*")) if each.exists())):
            facts = path.stat()
            if facts.st_uid not in owners:
                raise MachineError(
                    f"this belongs to another user (uid {facts.st_uid})",
                    code="owned-by-another-user",
                    remedy=f"if you trust its content: `chown -R {os.geteuid()} {shlex.quote(str(directory))}`{remedy}",
                    where=path,
                )
            if keeps_modes and facts.st_mode & _OTHERS_WRITE:
                raise MachineError(
                    f"other users may write this (mode {stat.S_IMODE(facts.st_mode):o})",
                    code="writable-by-others",
                    remedy=f"if you trust its content: `chmod -R go-w {shlex.quote(str(directory))}`{remedy}",
                    where=path,
                )


def _owners_of_new_files(directory: Path) -> tuple[set[int], bool]:
    """The owners of files that this user creates in `directory`, and whether their modes are kept.

    A file server may assign every file to one user, and file systems of other operating systems have one mode for all.
    """
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            facts = os.fstat(file.fileno())
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
        # No file can be created here: a read-only mount shows owners and modes as they are.
        return {0, os.geteuid()}, True
    return {0, os.geteuid(), facts.st_uid}, not facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
