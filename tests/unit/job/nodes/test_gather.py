"""Answers of hosts before a job starts, without a connection."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ascendtune.core.errors import AscendtuneError, InputError, MachineError, Stopped, error_to_json
from ascendtune.job.nodes import gather
from ascendtune.job.nodes.cluster_spec import ClusterSpec, TargetHost
from ascendtune.job.nodes.connection import Inbox, Received
from ascendtune.job.spec import JobSpec


class _Node:
    def __init__(self, host: TargetHost) -> None:
        self.host = host


def node_of(name: str) -> Any:
    return SimpleNamespace(host=TargetHost(name), send=lambda **message: None)


def test_more_processes_than_a_host_has_devices_are_refused_with_their_number() -> None:
    node, cluster = node_of("node2"), ClusterSpec((TargetHost("node2"),), nproc=9)
    with pytest.raises(MachineError) as refused:
        gather._nproc(node, {"kind": "npu", "devices": 8}, cluster)
    assert "9 devices" in refused.value.what and "--devices 8" in refused.value.remedy
    assert gather._nproc(node, {"kind": "cpu", "devices": 1}, cluster) == 9
    assert gather._nproc(node, {"kind": "npu", "devices": 8}, ClusterSpec((TargetHost("node2"),))) == 8


class _Clock:
    """Time that passes only while somebody sleeps."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_hosts_without_the_run_directory_are_waited_for_together_and_until_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: list[Any] = [_Node(TargetHost(f"node{number}")) for number in range(5)]
    monkeypatch.setattr(gather, "handshake", lambda nodes, *_, **__: ({node: {} for node in nodes}, {}))
    monkeypatch.setattr(gather, "_APPEARS_WITHIN_SECONDS", 0.2)
    spec = JobSpec(("x",), tmp_path / "run", 1, "cpu")
    inbox, cluster = Inbox(), ClusterSpec(tuple(node.host for node in nodes))

    clock = _Clock()
    monkeypatch.setattr(gather, "time", clock)
    with pytest.raises(MachineError) as refused:
        gather.gather(spec, cluster, nodes, inbox, lambda: None)
    assert refused.value.code == "run-not-shared" and clock.now < 0.6

    monkeypatch.setattr(gather, "_APPEARS_WITHIN_SECONDS", 60)
    with pytest.raises(Stopped):
        gather.gather(spec, cluster, nodes, inbox, lambda: signal.SIGINT)


def test_refusal_to_name_a_meeting_place_is_the_error_of_that_host() -> None:
    node, inbox = node_of("node2"), Inbox()
    error = InputError("MASTER_PORT is not a port", code="test", remedy="unset it")
    inbox.put(Received(node, {"refused": error_to_json(error)}))
    answer = {"address": "10.0.0.2", "client": None}
    with pytest.raises(AscendtuneError) as refused:
        gather._endpoint([node], [answer], cast(Any, inbox), lambda: None)
    assert refused.value.what == "node2: MASTER_PORT is not a port" and refused.value.exit_code == 2
