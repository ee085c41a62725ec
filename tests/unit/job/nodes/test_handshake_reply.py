from __future__ import annotations

import os
import platform
import socket
import time
from pathlib import Path

import pytest

from ascendtune.core.errors import InputError, MachineError
from ascendtune.job.nodes import handshake_reply


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_a_run_directory_that_another_user_may_not_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake_reply, "_APPEARS_WITHIN_SECONDS", 0.2)
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "token").touch()
    os.setresuid(65534, 65534, 0)
    try:
        with pytest.raises(MachineError, match="the run directory is not the one of the machine"):
            handshake_reply.describe_host({"directory": "/", "token": str(private / "token"), "node": 0, "env": {}})
    finally:
        os.setresuid(0, 0, 0)


def test_a_directory_that_a_host_does_not_have_is_told_by_its_name(tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere")
    with pytest.raises(MachineError) as refused:
        handshake_reply.describe_host({"directory": missing, "token": None, "node": 0, "env": {}})
    assert refused.value.code == "directory-not-shared" and str(missing) in refused.value.what
    assert refused.value.where == missing and "shared file system" in refused.value.remedy


def test_a_host_says_where_it_is_and_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job").mkdir()
    seen = handshake_reply.describe_host({"directory": str(tmp_path / "job"), "token": None, "node": 0, "env": {}})
    assert Path.cwd() == tmp_path / "job"
    assert seen["versions"]["python"] == platform.python_version() and seen["versions"].keys() >= set(
        handshake_reply.COMPARED
    )
    assert seen["devices"] >= 0 and abs(seen["time"] - time.time()) < 60


def test_a_master_port_is_tried_on_node_0() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(MachineError) as caught:
            handshake_reply.endpoint(["127.0.0.1"], {"MASTER_PORT": str(taken.getsockname()[1])})
        assert caught.value.code == "port-unavailable"
    with pytest.raises(InputError) as caught:
        handshake_reply.endpoint(["127.0.0.1"], {"MASTER_PORT": "99999"})
    assert caught.value.code == "invalid-node-variable" and "MASTER_PORT=99999" in caught.value.what
