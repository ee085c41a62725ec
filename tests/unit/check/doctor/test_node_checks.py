"""Checks that need several machines, on made-up answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascend_node.node import Chip, Node
from ascend_node.scenarios import HEALTHY, SCENARIOS
from ascend_node.system import system_of
from ascendtune.check.doctor import NODE_CHECKS
from ascendtune.check.doctor.check import examine
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding
from ascendtune.check.nodes.agent import look
from ascendtune.check.nodes.node_report import Clock, NodeReport, NodeReports, report_of_json
from ascendtune.core.errors import MachineError


def _answer(ahead_seconds: float = 0.0, within_seconds: float = 0.001, **facts: str) -> NodeReport:
    return NodeReport("", "", (), (), facts, Clock(ahead_seconds, within_seconds))


def _answers(code: str, answers: dict[str, NodeReport], **silent: MachineError) -> list[Finding]:
    return list(examine(System(nodes=NodeReports(answers, silent)), [code]).findings)


def _clocks(*clocks: tuple[float, float]) -> list[Finding]:
    return _answers("clock_skew", {f"node{number}": _answer(*clock) for number, clock in enumerate(clocks, 1)})


def test_clocks_that_agree_are_ok() -> None:
    (found,) = _clocks((0.002, 0.001), (-0.004, 0.002))
    assert found.status == "ok" and "2 nodes are within 6.0 ms" in found.measured


@pytest.mark.parametrize(("ahead", "said"), [(12.0, "12.0 s (± 1.0 ms) ahead of"), (-2.0, "2.0 s")])
def test_clock_that_is_off_is_a_warning_with_its_offset(ahead: float, said: str) -> None:
    (found,) = _clocks((0.0, 0.001), (ahead, 0.001), (0.001, 0.001))
    assert found.status == "warning" and found.measured.startswith(f"the clock of node2 is {said}")
    assert "chronyd" in (found.remedy or "")


def test_no_skew_is_claimed_within_half_the_round_trip() -> None:
    (found,) = _clocks((1.4, 0.5))
    assert found.status == "ok"
    (found,) = _clocks((1.6, 0.5))
    assert found.status == "warning"


def test_clock_offset_within_the_round_trip_is_unknown() -> None:
    (found,) = _clocks((2.0, 1.5))
    assert found.status == "unknown" and "took 3.0 s to answer" in found.measured
    (found,) = _clocks((20.0, 1.5))
    assert found.status == "warning"


def test_if_all_other_clocks_agree_this_machines_clock_is_wrong() -> None:
    (found,) = _clocks((-5.0, 0.001), (-5.3, 0.001))
    assert found.measured == ("the clock of this machine is 5.0 s (± 1.0 ms) ahead of those of both nodes, which agree")
    assert len(_clocks((-5.0, 0.001), (5.0, 0.001))) == 2


def test_node_that_does_not_answer_is_a_failure() -> None:
    gone = MachineError("node2 does not answer within 30 s", code="test", remedy="look", where="node2")
    (found,) = _answers("nodes_answer", {"node1": _answer()}, node2=gone)
    assert found.status == "failure" and found.measured == gone.what
    (found,) = _answers("nodes_answer", {"node1": _answer()})
    assert found.status == "ok"


def test_nodes_whose_facts_differ_are_named_with_them() -> None:
    found = _answers("nodes_alike", {"a": _answer(torch="2.7.1", kernel="5.10"), "b": _answer(torch="2.6.0")})
    assert [(each.status, each.measured) for each in found] == [
        ("failure", "the nodes differ: torch 2.7.1 on a, 2.6.0 on b"),
        ("warning", "the nodes differ: kernel 5.10 on a, absent on b"),
    ]
    (alike,) = _answers("nodes_alike", {"a": _answer(torch="2.7.1"), "b": _answer(torch="2.7.1")})
    assert alike.status == "ok"


def test_on_one_machine_the_question_does_not_arise() -> None:
    assert examine(System(), list(NODE_CHECKS)).not_applicable == tuple(NODE_CHECKS)


Network = Callable[..., list[Finding]]


@pytest.fixture
def network(tmp_path: Path) -> Network:
    """What `doctor --nodes` says about the NPUs' network of simulated machines, node1 and further ones."""

    def examined(*nodes: Node) -> list[Finding]:
        answers = {}
        for number, node in enumerate(nodes, 1):
            system = system_of(node, tmp_path / str(number))
            answer = look(system, {"codes": [], "facts": False, "ports": True})
            clock = {"ahead_seconds": 0.0, "within_seconds": 0.0}
            answers[f"node{number}"] = report_of_json(json.loads(json.dumps({**answer, "clock": clock})))
        return _answers("nodes_npu_network", answers)

    return examined


def _node(number: int, of: Node = HEALTHY, **port: Any) -> Node:
    """A healthy machine; the addresses of its NPUs begin at 10.20.0.NUMBER0, unless `subnet` is another one."""
    subnet = port.pop("subnet", "10.20.0")
    chips = (replace(chip, address=f"{subnet}.{20 * number + index}", **port) for index, chip in enumerate(of.chips))
    return replace(of, chips=tuple(chips))


def test_equal_ports_with_addresses_of_their_own_are_ok(network: Network) -> None:
    (found,) = network(_node(1), _node(2, gateway=None), _node(3))
    assert found.status == "ok" and "24 NPU ports of all 3 nodes" in found.measured


def test_a_single_node_with_ports_is_not_compared(network: Network) -> None:
    assert network(_node(1), replace(_node(2), hccn_tool="absent")) == []


def test_hosts_of_one_super_pod_have_indices_of_their_own(network: Network) -> None:
    def at(number: int, pod: int, server: int) -> Node:
        return replace(_node(number, SCENARIOS["healthy-a3"]), super_pod=(pod, server))

    (found,) = network(at(1, 0, 4), at(2, 0, 5))
    assert found.status == "ok"
    (found,) = network(at(1, 0, 4), at(2, 0, 4), at(3, 0, 6))
    assert (found.status, found.measured) == ("failure", "node1, node2 have the server index 4 in super pod 0")
    (found,) = network(at(1, 0, 4), at(2, 3, 4), at(3, 0, 5))
    assert found.status == "warning"
    assert found.measured == "the nodes are in 2 super pods: node1, node3 in 0; node2 in 3"


def test_both_dies_of_an_a3_card_have_ports(network: Network) -> None:
    (found,) = network(*(_node(number, SCENARIOS["healthy-a3"]) for number in (1, 2)))
    assert found.status == "ok" and "32 NPU ports of both nodes" in found.measured


def test_tls_that_is_on_on_one_node_only_is_a_failure(network: Network) -> None:
    (found,) = network(_node(1), _node(2, tls=1), _node(3))
    assert found.status == "failure"
    assert found.measured == "TLS of the NPUs' ports is on on node2, off on node1, node3"
    assert found.remedy == "on node2: for i in 0 1 2 3 4 5 6 7; do sudo hccn_tool -i $i -tls -s enable 0; done"


def test_tls_of_one_npu_of_a_node_is_named(network: Network) -> None:
    mixed = _node(1)
    mixed = replace(mixed, chips=(replace(mixed.chips[0], tls=1), *mixed.chips[1:]))
    (found,) = network(mixed, _node(2))
    assert "on on node1 (NPU 0), off on node1 (NPU 1, 2, 3, 4, 5, 6, 7), node2" in found.measured


def test_address_that_two_nodes_have_is_a_failure(network: Network) -> None:
    first = _node(1)
    (found,) = network(replace(first, chips=(*first.chips[:7], Chip(address="10.20.0.40"))), _node(2))
    assert found.status == "failure"
    assert found.measured == "NPU 7 of node1, NPU 0 of node2 share the address 10.20.0.40"
    assert found.remedy == "on node2: sudo hccn_tool -i 0 -ip -s address <ADDRESS> netmask 255.255.255.0"


def test_every_address_of_a_copied_configuration_is_evidence(network: Network) -> None:
    (found,) = network(_node(1), _node(1))
    assert "(and 7 more)" in found.measured and len(found.evidence) == 8


def test_another_subnet_needs_a_gateway(network: Network) -> None:
    (found,) = network(_node(1), _node(2, subnet="10.30.0", gateway=None))
    assert found.status == "warning"
    assert found.measured.startswith("no gateway: NPU 0, 1, 2, 3, 4, 5, 6, 7 of node2, and the other nodes are in")
    assert found.evidence[0] == "NPU 0: 10.20.0.0/24, 10.30.0.0/24"


@pytest.mark.parametrize("port", [{"gateway": "10.30.0.1"}, {"gateway": None, "netmask": "255.0.0.0"}])
def test_gateways_and_a_wide_netmask_connect_subnets(network: Network, port: dict[str, Any]) -> None:
    (found,) = network(_node(1, **port), _node(2, subnet="10.30.0", **port))
    assert found.status == "ok"


@pytest.mark.parametrize("field", [{"device": True}, {"tls": 1}, {"address": "\x1b[2J"}, {"netmask": "here"}, {"x": 1}])
def test_ports_of_a_stranger_are_checked(tmp_path: Path, field: dict[str, Any]) -> None:
    answer = look(system_of(HEALTHY, tmp_path), {"codes": [], "facts": False, "ports": True})
    answer = {**answer, "not_applicable": [], "clock": {"ahead_seconds": 0.0, "within_seconds": 0.0}}
    assert report_of_json(answer).ports[0].address == "10.20.0.10"
    with pytest.raises((TypeError, ValueError)):
        report_of_json({**answer, "ports": [{**answer["ports"][0], **field}]})
