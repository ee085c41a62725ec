"""Checks that need several machines, on made-up answers."""

from __future__ import annotations

import pytest

from ascendtune.check.doctor import NODE_CHECKS
from ascendtune.check.doctor.check import examine
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding
from ascendtune.check.nodes.node_report import Clock, NodeReport, NodeReports
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
