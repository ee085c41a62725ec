from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ascendtune.core.errors import MachineError
from ascendtune.machine import peers
from ascendtune.machine.peers import INIT_METHOD

_CONNECT = "import os, socket, sys; {}; c = socket.create_connection(('127.0.0.1', {})); print(flush=True); input()"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INIT_METHOD, "file:///proc/1/fd/1")
    monkeypatch.setattr(peers, "_LEAVES_WITHIN_SECONDS", 0.3)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def _connected(server: socket.socket, first: str) -> subprocess.Popen[bytes]:
    """A process that is connected to `server` until its stdin ends."""
    code = _CONNECT.format(first, server.getsockname()[1])
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_process_of_the_same_user_may_be_connected(server: socket.socket) -> None:
    with _connected(server, "pass") as process:
        peers.require_own_peers()
        process.communicate()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: it starts a process of another user")
def test_a_process_of_another_user_is_refused(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    with _connected(server, "import encodings.idna; os.setuid(65534)") as process:
        with pytest.raises(MachineError) as caught:
            peers.require_own_peers()
        assert caught.value.code == "foreign-peer" and str(server.getsockname()[1]) in caught.value.what
        monkeypatch.delenv(INIT_METHOD)
        peers.require_own_peers()
        process.communicate()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: it starts a process of another user")
def test_a_process_of_another_user_that_leaves_does_no_harm(server: socket.socket) -> None:
    with _connected(server, "import encodings.idna; os.setuid(65534)") as process:
        process.communicate()
        peers.require_own_peers()
