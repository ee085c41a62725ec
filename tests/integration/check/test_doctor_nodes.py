"""`doctor --nodes` on two machines of which one is different: its clock, a variable, its network."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import Cluster, two_machines, until

_AHEAD_SECONDS = 90


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    path = tmp_path_factory.mktemp("machines")
    (path / "sitecustomize.py").write_text(
        f"import time\ntrue = time.time\ntime.time = lambda: true() + {_AHEAD_SECONDS}\n"
    )
    odd = {"PYTHONPATH": str(path), "HCCL_CONNECT_TIMEOUT": "300", "HCCL_IF_IP": "10.0.0.9"}
    with two_machines(path, variables={"nodea": {"HCCL_IF_IP": "10.0.0.8"}, "nodeb": odd}) as machines:
        subprocess.run(["ip", "-n", machines.hosts["nodeb"], "link", "set", "eth7", "mtu", "1400"], check=True)
        yield machines


def _start(machines: Cluster, *words: str, **env: str) -> subprocess.Popen[str]:
    own = {name: value for name, value in machines.environment().items() if name != "PYTHONPATH"}
    return subprocess.Popen(
        [sys.executable, "-m", "ascendtune", "doctor", *words],
        env={**own, "HF_HUB_OFFLINE": "1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_differences_name_the_odd_node(machines: Cluster) -> None:
    doctor = _start(machines, "--nodes", "localhost,nodea,nodeb")
    out, err = doctor.communicate(timeout=60)
    lines = [line.strip() for line in out.splitlines()]
    assert lines[0].startswith("nodeb differs: MTU 1400 there, 1500 on the other 2 (1 more difference); the"), out + err
    assert any(
        line.startswith(f"warning  clock_skew    the clock of nodeb is {_AHEAD_SECONDS}.0 s (±") for line in lines
    )
    table = lines[lines.index("differences") :]
    assert "warning  HCCL_CONNECT_TIMEOUT  nodeb: 300" in table
    assert "warning  MTU                   nodeb: 1400" in table and "the other 2: 1500" in table
    assert not [line for line in lines if "HCCL_IF_IP" in line], "an address of its own is no difference"
    assert doctor.returncode == 0
    assert all(line.startswith("nodes that answered: ") for line in err.splitlines()), "progress of a slow machine"
    assert machines.is_quiet()


def test_json_and_a_node_that_does_not_answer(machines: Cluster) -> None:
    secret = "hf_thisstaysinside"
    doctor = _start(machines, "--nodes", "nodea,nodec", "--json", "limits", HF_TOKEN=secret)
    out, err = doctor.communicate(timeout=60)
    told = json.loads(out)
    assert told["verdict"].startswith("nodec does not answer; nodea trains on the CPU"), err
    assert told["exit_code"] == doctor.returncode == 1
    assert told["silent"]["nodec"]["what"].startswith("the connection to nodec has ended: ssh: connect to host 10.93.")
    assert [each["code"] for each in told["findings"]] == ["nodes_answer"]
    assert [each["code"] for each in told["nodes"]["nodea"]["findings"]] == ["limits"]
    assert secret not in out + err


def test_doctor_exits_with_3_when_no_node_answers(machines: Cluster) -> None:
    doctor = _start(machines, "--nodes", "nodec", "limits")
    out, err = doctor.communicate(timeout=60)
    assert doctor.returncode == 3 and out == "" and "error: the connection to nodec has ended" in err


def test_no_process_is_left_if_the_asking_process_was_killed(machines: Cluster, tmp_path: Path) -> None:
    hanging = tmp_path / "npu-smi"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    path = f"{tmp_path}:{machines.environment()['PATH']}"
    doctor = _start(machines, "--nodes", "nodea,nodeb", "npu_smi", PATH=path, HF_TOKEN="hf_notforeveryone")
    until(lambda: all(machines.named(host, "sleep") for host in machines.hosts), 20)
    arguments = [Path(f"/proc/{pid}/cmdline").read_text() for pid in machines.everything()]
    assert not [words for words in arguments if "hf_notforeveryone" in words]
    os.kill(doctor.pid, signal.SIGKILL)
    until(machines.is_quiet, 5)
    doctor.communicate(timeout=10)


def test_options_that_exclude_nodes_are_refused(machines: Cluster) -> None:
    for words, said in (
        (["clock_skew"], "code: option-missing"),
        (["--nodes", "a,b", "--fix"], "--fix and --bundle work on one machine"),
        (["--nodes", "a,a"], "a is named twice"),
    ):
        doctor = _start(machines, *words)
        _, err = doctor.communicate(timeout=60)
        assert doctor.returncode == 2 and said in err
