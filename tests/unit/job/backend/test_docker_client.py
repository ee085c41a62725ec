"""The request that the real Docker client makes of our script for a daemon."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import submissions
from ascendtune.job.backend import docker

pytestmark = pytest.mark.long


class _Daemon(BaseHTTPRequestHandler):
    """Says that it is Linux, notes what shall be created, and refuses."""

    asked: list[dict[str, Any]] = []

    def do_HEAD(self) -> None:
        self._answer(200)

    do_GET = do_HEAD

    def do_DELETE(self) -> None:
        self._answer(404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "/containers/create" in self.path:
            self.asked.append({"path": self.path, **json.loads(body)})
        self._answer(500)

    def _answer(self, code: int) -> None:
        self.send_response(code)
        for name, value in (("Api-Version", "1.43"), ("Ostype", "linux"), ("Content-Length", "0")):
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def daemon() -> Iterator[str]:
    if shutil.which("docker") is None:
        pytest.skip("no Docker client")
    _Daemon.asked.clear()
    with HTTPServer(("127.0.0.1", 0), _Daemon) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"tcp://127.0.0.1:{server.server_port}"
        server.shutdown()


def _asked_for(kind: submissions.Kind, nodes: int, place: Path, daemon: str) -> dict[str, Any]:
    script = place / "run.sh"
    script.write_text(docker.write(submissions.submission(kind, nodes, str(place)), place))
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(place), "DOCKER_HOST": daemon}
    env |= {"NODE_RANK": "1", "MASTER_ADDR": "node0", "HF_TOKEN": "a-secret"}
    done = subprocess.run(["bash", script], env=env, capture_output=True, text=True, timeout=30)
    assert _Daemon.asked, done.stderr
    return _Daemon.asked[0]


def test_npus_are_device_files_and_a_driver(tmp_path: Path, daemon: str) -> None:
    asked = _asked_for("npu", 2, tmp_path, daemon)
    host = asked["HostConfig"]
    devices = [device["PathInContainer"] for device in host["Devices"]]
    shared = ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
    assert devices == ["/dev/davinci0", "/dev/davinci1", *shared]
    assert {mount["Target"]: mount.get("ReadOnly", False) for mount in host["Mounts"]} == {
        "/usr/local/Ascend/driver": True,
        "/usr/local/dcmi": True,
        "/etc/ascend_install.info": True,
        "/data/models/qwen": True,
        "/data/rows.jsonl": True,
        str(tmp_path / "cache"): False,
        str(tmp_path / "runs"): False,
    }
    assert not host["Privileged"]
    assert not host["CapAdd"]
    assert host["NetworkMode"] == "host"
    assert {"NNODES=2", "NODE_RANK=1", "MASTER_ADDR=node0", "MASTER_PORT=29500"} <= set(asked["Env"])


def test_gpus_are_a_request_to_the_driver(tmp_path: Path, daemon: str) -> None:
    host = _asked_for("cuda", 1, tmp_path, daemon)["HostConfig"]
    (request,) = host["DeviceRequests"]
    assert (request["DeviceIDs"], request["Capabilities"]) == (["0", "1"], [["gpu"]])
    assert {limit["Name"]: limit["Hard"] for limit in host["Ulimits"]} == {"memlock": -1, "stack": 67_108_864}
    assert host["NetworkMode"] != "host"


def test_the_command_is_what_train_is_called_with(tmp_path: Path, daemon: str) -> None:
    asked = _asked_for("cpu", 1, tmp_path, daemon)
    recipe = str(tmp_path / "recipe.yaml")
    assert asked["Cmd"] == ["ascendtune", "train", recipe, "optim.epochs=2", "--devices", "2"]
    assert asked["WorkingDir"] == str(tmp_path)
    assert asked["HostConfig"]["ShmSize"] == 16 * 2**30
    assert asked["HostConfig"]["Init"] is True
    assert asked["StopTimeout"] == 600
    # The value comes from the shell of whoever runs the script; the script has the name alone.
    assert "HF_TOKEN=a-secret" in asked["Env"]
    assert "a-secret" not in (tmp_path / "run.sh").read_text()


def test_a_path_with_commas_and_quotes_is_one_mount(tmp_path: Path, daemon: str) -> None:
    place = tmp_path / 'a,readonly=false,"b" $HOME'
    place.mkdir()
    asked = _asked_for("cpu", 1, place, daemon)
    mounts = {mount["Source"]: mount.get("ReadOnly", False) for mount in asked["HostConfig"]["Mounts"]}
    assert mounts[str(place / "runs")] is False and mounts["/data/rows.jsonl"] is True and len(mounts) == 4
    assert asked["WorkingDir"] == str(place)
