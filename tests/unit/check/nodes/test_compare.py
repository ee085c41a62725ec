"""Answers are made up; what is said of them is not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ascendtune.check.finding import Finding, failure, ok
from ascendtune.check.nodes.compare import compare_nodes
from ascendtune.check.nodes.node_report import Clock, NodeReport, NodeReports, report_of_json
from ascendtune.check.nodes.summary import as_json, as_text, summary
from ascendtune.core.errors import MachineError

FACTS = {"torch_npu": "2.7.1", "driver": "25.2.0", "NPUs": "8 x 910B4 with 64.0 GiB"}
FILES = Finding("limits", "warning", "at most 1024 open files", remedy="ulimit -n 4096")
OFFLINE = Finding("network", "unknown", "no hub answers")
ALIKE = NodeReport(
    verdict="this machine trains on 8 NPU (910B4)",
    trains_on="8 NPU (910B4)",
    findings=(ok("limits", "open files 65536"), ok("disk", "500 GiB free")),
    not_applicable=("cuda",),
    facts=FACTS,
    clock=Clock(0.001, 0.0005),
)
FOUR = {f"node{number}": ALIKE for number in (1, 2, 3, 4)}


def _odd(**facts: str | None) -> NodeReport:
    told = {**FACTS, **facts}
    return replace(ALIKE, facts={name: value for name, value in told.items() if value is not None})


def _sentence(answers: dict[str, NodeReport], **silent: MachineError) -> str:
    return summary(NodeReports(answers, silent), compare_nodes(answers), ())


def test_npus_that_cannot_connect_come_before_differences() -> None:
    tls = failure("nodes_npu_network", "TLS of the NPUs' ports is on on node1, off on node2", remedy="switch it off")
    for answers, rest in ((FOUR, ""), (FOUR | {"node4": _odd(driver="24.1.0")}, "; node4 differs: driver 24.1.0")):
        sentence = summary(NodeReports(answers, {}), compare_nodes(answers), [tls])
        assert sentence.startswith(tls.measured + rest) and "alike" not in sentence


def test_four_that_are_alike() -> None:
    found = compare_nodes(FOUR)
    assert (found.differences, found.shared, found.equal_facts, found.equal_checks) == ((), (), 3, 2)
    assert _sentence(FOUR) == "all 4 nodes are alike and train on 8 NPU (910B4)"


def test_a_few_checks_say_nothing_of_versions() -> None:
    answers = {name: replace(ALIKE, facts={}) for name in FOUR}
    assert _sentence(answers) == "all 4 nodes are alike in what was asked"
    text = as_text(
        "v", NodeReports(answers, {}), compare_nodes(answers), (), columns=None, paint=lambda text, colour: text
    )
    assert text.splitlines()[-1] == "the same on all 4 nodes: 2 checks"


def test_single_node_is_described_without_a_comparison() -> None:
    assert _sentence({"node1": ALIKE}) == "node1 trains on 8 NPU (910B4)"


def test_the_odd_one_of_four_is_named() -> None:
    answers = {**FOUR, "node2": _odd(torch_npu="2.6.0")}
    (difference,) = compare_nodes(answers).differences
    assert difference.status == "failure"
    assert [group.hosts for group in difference.groups] == [("node2",), ("node1", "node3", "node4")]
    assert _sentence(answers) == "node2 differs: torch_npu 2.6.0 there, 2.7.1 on the other 3"


def test_differences_that_stop_a_job_come_first() -> None:
    answers = {**FOUR, "node3": _odd(driver="24.1.0", torch_npu="2.6.0", HCCL_CONNECT_TIMEOUT="300")}
    assert [(each.name, each.status) for each in compare_nodes(answers).differences] == [
        ("torch_npu", "failure"),
        ("driver", "warning"),
        ("HCCL_CONNECT_TIMEOUT", "warning"),
    ]
    assert _sentence(answers).endswith("on the other 3 (2 more differences)")


@pytest.mark.parametrize(
    ("torch_npu", "said"),
    [
        (("2.6.0", "2.7.1"), "the nodes differ: torch_npu 2.6.0 on a, 2.7.1 on b"),
        (("2.6.0", "2.6.0", "2.7.1", "2.7.1"), "the nodes differ: torch_npu 2.6.0 on a and b, 2.7.1 on c and d"),
        (("2.6.0", None, "2.7.1", "2.7.1"), "a and b differ: torch_npu 2.6.0 on a, absent on b, 2.7.1 on the other 2"),
        (("2.6.0", "2.6.0", "2.7.1", "2.7.1", "2.7.1"), "a and b differ: torch_npu 2.6.0 there, 2.7.1 on the other 3"),
    ],
)
def test_sentence_names_the_odd_machines(torch_npu: tuple[str | None, ...], said: str) -> None:
    answers = {name: _odd(torch_npu=version) for name, version in zip("abcde", torch_npu, strict=False)}
    assert _sentence(answers) == said


def test_a_check_that_finds_something_on_one_alone() -> None:
    answers = {**FOUR, "node4": replace(ALIKE, findings=(FILES, ok("disk", "7 GiB free")))}
    (difference,) = compare_nodes(answers).differences
    assert (difference.name, difference.status, difference.is_fact) == ("limits", "warning", False)
    assert [group.value for group in difference.groups] == ["warning: at most 1024 open files", "ok"]
    assert difference.remedies == {"warning: at most 1024 open files": "ulimit -n 4096"}
    assert compare_nodes(answers).equal_checks == 1, "free disk differs by right"


def test_the_same_check_finds_other_things() -> None:
    others = replace(ALIKE, findings=(replace(FILES, measured="at most 512 open files"),))
    answers = {name: replace(ALIKE, findings=(FILES,)) for name in ("a", "b")} | {"c": others}
    assert [group.value for group in compare_nodes(answers).differences[0].groups] == [
        "warning: at most 512 open files",
        "warning: at most 1024 open files",
    ]
    assert compare_nodes(answers).shared == ()


def test_findings_shared_by_all_nodes_are_shown_once() -> None:
    answers = {name: replace(ALIKE, findings=(FILES, OFFLINE)) for name in FOUR}
    assert compare_nodes(answers).shared == (FILES, OFFLINE)
    text = as_text(
        "v", NodeReports(answers, {}), compare_nodes(answers), (), columns=None, paint=lambda text, colour: text
    )
    assert text.splitlines()[1:] == [
        "",
        "on all 4 nodes",
        "warning  limits   at most 1024 open files",
        "                  do: ulimit -n 4096",
        "unknown  network  no hub answers",
        "",
        "the same on all 4 nodes: 3 facts and 2 checks",
    ]


def test_a_silent_node_is_named_before_all() -> None:
    answers = {name: FOUR[name] for name in ("node1", "node2")}
    gone = MachineError("node3 does not answer within 30 s", code="test", remedy="look", where="node3")
    assert _sentence(answers, node3=gone) == "node3 does not answer; the other 2 are alike and train on 8 NPU (910B4)"


def test_the_table_of_differences() -> None:
    odd = replace(_odd(torch_npu="2.6.0"), findings=(FILES,))
    answers = {**FOUR, "node2": odd}
    text = as_text(
        "v", NodeReports(answers, {}), compare_nodes(answers), (), columns=None, paint=lambda text, colour: text
    )
    assert text.splitlines()[1:] == [
        "",
        "differences",
        "failure  torch_npu  node2: 2.6.0",
        "                    the other 3: 2.7.1",
        "warning  limits     node2: warning: at most 1024 open files",
        "                      do: ulimit -n 4096",
        "                    the other 3: ok",
        "",
        "the same on all 4 nodes: 2 facts and 1 check",
    ]
    narrow = as_text(
        "v", NodeReports(answers, {}), compare_nodes(answers), (), columns=40, paint=lambda text, colour: text
    )
    assert max(map(len, narrow.splitlines())) <= 46


def test_json_holds_everything_of_every_node() -> None:
    answers = {**FOUR, "node2": _odd(driver="24.1.0")}
    gone = MachineError("node5 is not there", code="test", remedy="look", where="node5")
    told = json.loads(as_json("v", 1, NodeReports(answers, {"node5": gone}), compare_nodes(answers), ()))
    assert {name: report_of_json(answer) for name, answer in told["nodes"].items()} == answers
    assert told["silent"] == {"node5": {"what": "node5 is not there", "remedy": "look"}}
    assert told["differences"][0]["groups"][0] == {"value": "24.1.0", "nodes": ["node2"]}
    assert told["exit_code"] == 1
