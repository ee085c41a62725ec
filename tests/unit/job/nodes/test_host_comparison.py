from __future__ import annotations

from typing import Any

import pytest

from ascendtune.core.errors import InputError, MachineError
from ascendtune.job.nodes.cluster_spec import TargetHost
from ascendtune.job.nodes.host_comparison import require_compatible_hosts, warn_of_clocks


def _answers(*different: dict[str, Any]) -> dict[TargetHost, dict[str, Any]]:
    """Of as many hosts as are given, with what is different on each."""
    answers = {}
    for number, own in enumerate(different, 1):
        answer = {"machine": str(number), "kind": "npu", "note": None, "time": 100.0, "received": 100.5}
        versions = {"python": "3.11.9", "torch": "2.7.1", "torch_npu": "2.7.1"} | own.pop("versions", {})
        answers[TargetHost(f"node{number}")] = answer | {"versions": versions} | own
    return answers


def test_hosts_that_are_alike_may_start() -> None:
    require_compatible_hosts(_answers({}, {}, {}))
    require_compatible_hosts(_answers({}))


def test_the_odd_one_is_named_with_all_in_which_it_differs() -> None:
    odd = {"versions": {"torch": "2.6.0", "torch_npu": None}}
    with pytest.raises(MachineError) as raised:
        require_compatible_hosts(_answers({}, odd, {}, {}))
    assert raised.value.what == "node2 differs: torch 2.6.0 there, 2.7.1 on the other 3"
    assert raised.value.where == "node2"
    assert [each.what for each in raised.value.further] == [
        "node2 differs: torch_npu absent there, 2.7.1 on the other 3"
    ]


def test_a_host_whose_devices_are_not_seen_says_why() -> None:
    with pytest.raises(MachineError) as raised:
        require_compatible_hosts(_answers({}, {"kind": "cpu", "note": "the driver is there, its devices are not"}))
    assert raised.value.what == "the nodes differ: devices npu on node1, cpu on node2"
    assert raised.value.remedy == "the driver is there, its devices are not"


def test_one_machine_under_two_names_is_refused() -> None:
    with pytest.raises(InputError) as raised:
        require_compatible_hosts(_answers({"machine": "a"}, {"machine": "b"}, {"machine": "a"}))
    assert raised.value.what == "node1 and node3 are the same machine"
    assert "`node1 slots=N`" in raised.value.remedy


def test_clock_skew_between_hosts_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("ascendtune.job.nodes.host_comparison.warn", said.append)
    warn_of_clocks(_answers({}, {"time": 190.0}, {"time": 40.0}))
    assert said == [
        "the clock of node2 is 90 s ahead of ours: logs will not line up",
        "the clock of node3 is 60 s behind ours: logs will not line up",
    ]
