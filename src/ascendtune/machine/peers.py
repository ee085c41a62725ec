"""The rendezvous of a job's ranks, and checks of the processes that are connected to ports of this one.

Gloo identifies a rank by the number that a connection sends first, so that any process that reaches its port can take
the place of a rank. On one machine the kernel knows the owner of the process at the other end of a connection.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ascendtune.core.errors import MachineError
from ascendtune.core.procfs import open_files, user_name

INIT_METHOD = "ASCENDTUNE_INIT_METHOD"
"""A URL for torch's `init_method`, set by `ascendtune.job.torchrun` for ranks of ours on one host."""
_LISTENS, _ESTABLISHED = "0A", "01"
_LEAVES_WITHIN_SECONDS = 5.0
"""A port scanner connects and disconnects at once."""


def init_method() -> str:
    """The `init_method` that the ranks of this job pass to torch; torchrun's variables if none is set."""
    return os.environ.get(INIT_METHOD, "env://")


def require_own_peers() -> None:
    """Raise if processes of other users are connected to ports of this process, and the job is on one host.

    Must be called when a process group has been created: its connections stay from then on.

    Raises:
        MachineError: a process of another user, other than root, is connected.
    """
    if INIT_METHOD not in os.environ:
        # Not set: the job has several hosts.
        return
    deadline = time.monotonic() + _LEAVES_WITHIN_SECONDS
    while strangers := dict(_strangers()):
        if time.monotonic() > deadline:
            port, uid = next(iter(strangers.items()))
            raise MachineError(
                f"a process of {user_name(uid)} is connected to port {port} of this rank, perhaps as another rank",
                code="foreign-peer",
                remedy=f"as root, find it with `ss -tnp sport = :{port} or dport = :{port}`; stop it; start again",
            )
        time.sleep(0.1)


def _strangers() -> Iterator[tuple[int, int]]:
    """Pairs of a port of ours and the uid of a process connected to it, for other users."""
    own = {name[len("socket:[") : -1] for name in open_files(os.getpid()) if name.startswith("socket:[")}
    for table in ("tcp", "tcp6"):
        sockets = _table(table)
        ports = {local.partition(":")[2] for local, _, state, _, inode in sockets if state == _LISTENS and inode in own}
        owners = {(local, remote): int(uid) for local, remote, state, uid, _ in sockets if state == _ESTABLISHED}
        for local, remote in owners:
            uid = owners.get((remote, local))
            if local.partition(":")[2] in ports and uid not in (None, 0, os.getuid()):
                yield int(local.partition(":")[2], 16), uid


def _table(name: str) -> list[tuple[str, str, str, str, str]]:
    """Local and remote address, state, uid and inode of every socket, as the kernel writes them."""
    with suppress(OSError):
        lines = Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
        return [(words[1], words[2], words[3], words[7], words[9]) for words in map(str.split, lines)]
    return []
