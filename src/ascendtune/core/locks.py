"""Locks on files, which end with their process."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ascendtune.core.errors import MachineError, translated_disk_errors


@contextmanager
def file_lock(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold an exclusive lock on `path`; the kernel releases it when the process ends, for any reason.

    Args:
        path: the lock file; it is created, in a directory that exists, and stays.
        wait: block until the lock is free, and see what its previous holder has done in the directory; otherwise yield
            False at once if another process holds it.
    """
    while True:
        with translated_disk_errors(path, "taking a lock"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            is_ours = try_lock(descriptor, path, wait=wait)
            # The previous holder may have removed the file: then other processes lock a new one.
            if not is_ours or is_opened_from(path, descriptor):
                if wait:
                    _forget_missing_names(path.parent)
                yield is_ours
                return
        finally:
            os.close(descriptor)


def _forget_missing_names(directory: Path) -> None:
    """Make a client of NFS ask again which names `directory` has; it caches for a minute that one does not exist.

    It stops trusting its cache when it changes the directory itself, and learns that others have changed it, too.
    """
    with suppress(OSError), tempfile.TemporaryFile(dir=directory):
        pass


def is_opened_from(path: Path, descriptor: int) -> bool:
    """Whether the file of `descriptor` is still the file at `path`."""
    try:
        opened, named = os.fstat(descriptor), path.stat()
    except OSError:
        return False
    return (opened.st_dev, opened.st_ino) == (named.st_dev, named.st_ino)


def try_lock(descriptor: int, path: Path, *, wait: bool = False) -> bool:
    """Lock an open file for this open file description; False if another one has the lock.

    Raises:
        MachineError: the file system of `path` does not support locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        raise MachineError(
            f"the file system does not support locks: {error.strerror}",
            code="file-locks-unsupported",
            remedy="mount it with locks (NFS 4; Lustre with -o flock), or use a directory on another file system",
            where=path,
        ) from error
    return True
