"""Files in place of a JSON record, reading which would block or never end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

_GIB = 1 << 30


def _larger_than_memory(path: Path) -> None:
    path.write_bytes(b"{")
    os.truncate(path, 64 * _GIB)


def _socket(path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as bound:
        # The name of a socket has 108 bytes at most.
        bound.bind(f"/proc/self/fd/{directory}/{path.name}")
    os.close(directory)


BAD_FILES: dict[str, Callable[[Path], Any]] = {
    "pipe": os.mkfifo,
    "link to an endless device": lambda path: path.symlink_to("/dev/zero"),
    "link to a file": lambda path: path.symlink_to("/etc/passwd"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "directory": Path.mkdir,
    "socket": _socket,
    "larger than memory": _larger_than_memory,
    "empty": Path.touch,
    "nested deeply": lambda path: path.write_text('{"state":' + "[" * 200_000 + "]" * 200_000 + "}"),
    "not JSON": lambda path: path.write_bytes(b"\xff\xfe\0"),
    "a list": lambda path: path.write_text("[]"),
    "a long number": lambda path: path.write_text('{"state": ' + "1" * 10_000 + "}"),
}
