"""Sockets on which processes listen, and an unprivileged process that attacks them."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket."""

    address: str
    port: int
    program: str
    """The command line of the process that holds it."""

    @property
    def is_on_loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def is_on_every_interface(self) -> bool:
        return ipaddress.ip_address(self.address).is_unspecified


def below(pid: int) -> list[int]:
    """`pid` and the processes that it has started, directly or not."""
    with suppress(psutil.NoSuchProcess):
        return [pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))]
    return []


def listeners(pids: Iterable[int]) -> set[Listener]:
    """The listening sockets of `pids`, each in its own network namespace."""
    found: set[Listener] = set()
    for pid in pids:
        # A process may end while it is read.
        with suppress(OSError, psutil.Error):
            sockets = _sockets(pid)
            program = " ".join(psutil.Process(pid).cmdline())
            for table in ("tcp", "tcp6") if sockets else ():
                for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                    words = line.split()
                    if words[3] == _LISTEN and words[9] in sockets:
                        address, _, port = words[1].partition(":")
                        found.add(Listener(_address(address), int(port, 16), program))
    return found


def seen_until_the_end(
    job: subprocess.Popen[str], pids: Callable[[], Iterable[int]], limit_seconds: float = 120
) -> set[Listener]:
    """Every listening socket that `pids` have had until `job` ends."""
    found: set[Listener] = set()
    deadline = time.monotonic() + limit_seconds
    while job.poll() is None and time.monotonic() < deadline:
        found |= listeners(pids())
        time.sleep(0.02)
    return found


class Attack:
    """A process of user 65534 that attacks ports from the moment they are named to it, until `end`.

    It imports torch before it gives up its user, whose files it may not read afterwards.

    Args:
        loot: in this directory files appear if a pickle of the attacker's is executed.
        namespace: of the network, as `ip netns` names it; None: this process's own.
    """

    def __init__(self, loot: Path, namespace: str | None = None) -> None:
        within = ["ip", "netns", "exec", namespace] if namespace else []
        loot.chmod(0o777)
        self._process = subprocess.Popen(
            [*within, sys.executable, str(Path(__file__).with_name("attacker.py")), str(loot)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self._told: set[tuple[str, int]] = set()

    def on(self, found: Iterable[Listener]) -> None:
        assert self._process.stdin is not None
        for each in found:
            if (each.address, each.port) not in self._told:
                self._told.add((each.address, each.port))
                self._process.stdin.write(f"{each.address} {each.port}\n")
                self._process.stdin.flush()

    def end(self) -> list[str]:
        """What the attacker says that it did, a line each."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.stdout is not None
        said = self._process.stdout.read().splitlines()
        self._process.wait(30)
        return said


def _sockets(pid: int) -> set[str]:
    names = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            names.add(str(descriptor.readlink()))
    return {name[len("socket:[") : -1] for name in names if name.startswith("socket:[")}


def _address(written: str) -> str:
    """An address as /proc/net/tcp writes it: words of 32 bits in the machine's byte order."""
    words = [bytes.fromhex(written[start : start + 8])[::-1] for start in range(0, len(written), 8)]
    return str(ipaddress.ip_address(b"".join(words)))
