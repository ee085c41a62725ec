"""Reading files that somebody else may have put there: never waited for, never without end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from ascendtune.core.errors import MachineError

_RECORD_BYTES = 64 << 20
"""A record of ours is smaller: run.json of a thousand attempts has a few MB."""


def open_regular(path: Path, *, follow_links: bool = True) -> BinaryIO:
    """`path.open("rb")` for a regular file.

    Raises:
        OSError: it is not there, or may not be read.
        MachineError: it is a pipe, a socket, a device or a directory; or a link, where links are not followed.
    """
    # O_NONBLOCK: to open a pipe waits for a writer otherwise. It means nothing to a regular file.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags if follow_links else flags | os.O_NOFOLLOW)
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
    """The content of a small file of ours.

    Args:
        own: whether it must belong to this user.

    Raises:
        OSError: it is not there, or may not be read.
        MachineError: it is not a regular file, too large, or another user's.
    """
    with open_regular(path, follow_links=False) as file:
        if own and os.fstat(file.fileno()).st_uid != os.geteuid():
            raise _not_a_file(path, "it belongs to another user")
        content = file.read(_RECORD_BYTES + 1)
    if len(content) > _RECORD_BYTES:
        raise _not_a_file(path, f"it is larger than {_RECORD_BYTES >> 20} MiB")
    return content


def _not_a_file(path: Path, reason: str) -> MachineError:
    return MachineError(f"{path.name} is not read: {reason}", remedy="bring it back, or remove it", where=path)
