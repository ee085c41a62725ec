from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ascendtune.core.errors import InputError, MachineError
from ascendtune.job.nodes import welcome


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_a_run_directory_that_another_user_may_not_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(welcome, "_APPEARS_WITHIN_SECONDS", 0.2)
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "token").touch()
    os.setresuid(65534, 65534, 0)
    try:
        with pytest.raises(MachineError, match="the run directory is not the one of the machine"):
            welcome.look_around({"directory": "/", "token": str(private / "token"), "node": 0, "env": {}})
    finally:
        os.setresuid(0, 0, 0)


def test_a_master_port_is_tried_on_node_0() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(MachineError, match="is in use"):
            welcome.endpoint(["127.0.0.1"], {"MASTER_PORT": str(taken.getsockname()[1])})
    with pytest.raises(InputError, match="MASTER_PORT=99999 is not a port"):
        welcome.endpoint(["127.0.0.1"], {"MASTER_PORT": "99999"})
