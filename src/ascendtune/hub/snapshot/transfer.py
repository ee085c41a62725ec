"""Transfers one file from a hub to the disk: resumed where an earlier try ended, verified before it gets its name."""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ascendtune.core.errors import translated_disk_errors
from ascendtune.core.files import sync_path
from ascendtune.core.http import Fault, open_url, translated
from ascendtune.hub.snapshot.hub_client import RemoteFile

_CHUNK = 1 << 18
STATE = ".ascendtune-fetch"
"""Directory inside the target: unfinished parts, the manifest, the lock."""
PACE_SECONDS = 20.0
"""Period over which the speed is measured."""


class TooSlow(Fault):
    """The mirror sends less than the minimum speed; another one may be faster."""


class WrongContent(Fault):
    """All bytes arrived, and their hash is not the one that the hub lists."""


class Cancelled(Exception):
    """The fetch was cancelled; the received part is kept for the next one."""


class Pace:
    """Bytes per second over the last PACE_SECONDS, of one connection."""

    def __init__(self, least: float) -> None:
        self._least = least
        self._marks: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])
        self._total = 0

    def add(self, count: int) -> None:
        """Count received bytes.

        Raises:
            TooSlow: the connection is older than PACE_SECONDS and slower than the minimum speed.
        """
        now = time.monotonic()
        self._total += count
        if now - self._marks[-1][0] >= 1:
            self._marks.append((now, self._total))
        while len(self._marks) > 1 and now - self._marks[1][0] >= PACE_SECONDS:
            self._marks.popleft()
        began, before = self._marks[0]
        if now - began >= PACE_SECONDS and (self._total - before) / (now - began) < self._least:
            raise TooSlow(f"{(self._total - before) / (now - began) / 1024:.0f} KiB/s")


def hash_of(file: RemoteFile) -> Any:
    """A hash object of the type that the hub lists; SHA-256 if it lists none."""
    if file.sha256 is None and file.git_sha1 is not None:
        return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    return hashlib.sha256()


def listed_hash(file: RemoteFile) -> str | None:
    """The expected result of `hash_of` for the whole content."""
    return file.sha256 or file.git_sha1


def is_verified(path: Path, file: RemoteFile) -> bool:
    """Whether the file on the disk has the listed size and hash."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    found = hash_of(file)
    with path.open("rb") as content:
        for chunk in iter(lambda: content.read(1 << 20), b""):
            found.update(chunk)
    return listed_hash(file) in (None, found.hexdigest())


def part_of(directory: Path, file: RemoteFile) -> Path:
    """Path of the unfinished file: another content of the same path has another part."""
    identity = hashlib.sha256(f"{file.path}\0{file.size}\0{listed_hash(file)}".encode()).hexdigest()[:32]
    return directory / STATE / f"{identity}.part"


def transfer(
    file: RemoteFile,
    directory: Path,
    url: str,
    headers: dict[str, str],
    *,
    least_speed: float,
    arrived: Callable[[int], None],
    cancelled: threading.Event,
) -> None:
    """Fetch the missing part of `file` into `directory`, verify it, and rename it to its final name.

    Args:
        least_speed: bytes per second below which the connection is given up; 0 accepts any.
        arrived: called with the number of received bytes; a negative number subtracts counted bytes that were lost.

    Raises:
        Fault: the connection failed, is too slow, or delivered wrong content. The part is kept, unless it is wrong.
        Cancelled: `cancelled` was set.
        MachineError: the disk is full or cannot be written.
    """
    part, target = part_of(directory, file), directory / file.path
    with translated_disk_errors(target, "downloading"):
        part.parent.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        running = hash_of(file)
        with _open_part(part, file.size) as content:
            while chunk := content.read(1 << 20):
                running.update(chunk)
            for chunk in _received(file, url, headers, content.tell(), Pace(least_speed), cancelled):
                content.write(chunk)
                running.update(chunk)
                arrived(len(chunk))
            content.flush()
            os.fsync(content.fileno())
        if listed_hash(file) not in (None, running.hexdigest()):
            arrived(-file.size)
            part.unlink()
            raise WrongContent(f"{file.path} does not have the hash that the hub lists")
        part.replace(target)
        sync_path(target.parent)


def _open_part(part: Path, size: int) -> BinaryIO:
    """Open the part, to be read from its beginning.

    It is emptied if another program left something there that cannot be the beginning of a file of this size.
    """
    with suppress(FileNotFoundError):
        found = part.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > size:
            part.unlink()
    content = os.fdopen(os.open(part, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666), "a+b")
    content.seek(0)
    return content


def _received(
    file: RemoteFile, url: str, headers: dict[str, str], offset: int, pace: Pace, cancelled: threading.Event
) -> Iterator[bytes]:
    """The bytes of the file from `offset` on, as they arrive."""
    if offset == file.size:
        return
    with _translated_connection_errors(), open_url(url, headers, offset=offset) as answer:
        position = offset - _bytes_before(answer, offset, file.size)
        while position < file.size:
            if cancelled.is_set():
                raise Cancelled
            chunk = answer.read1(min(_CHUNK, file.size - position))
            if not chunk:
                raise Fault(f"the connection ended {file.size - position:,} bytes before the end of {file.path}")
            pace.add(len(chunk))
            if new := chunk[max(0, offset - position) :]:
                yield new
            position += len(chunk)


def _bytes_before(answer: http.client.HTTPResponse, offset: int, size: int) -> int:
    """Number of bytes that the answer repeats: 0, or all if the server does not support ranges."""
    if answer.status == 200:
        return offset
    expected = f"bytes {offset}-{size - 1}/{size}"
    if answer.headers.get("Content-Range") != expected:
        raise Fault(f"the server sends another range: {answer.headers.get('Content-Range', 'none')[:60]}")
    return 0


@contextmanager
def _translated_connection_errors() -> Iterator[None]:
    try:
        yield
    except (http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError) as error:
        raise translated(error) from error
