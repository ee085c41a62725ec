"""Agents on this machine, real ones and some that behave badly."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest

from ascendtune.check.nodes.compare import compare_nodes
from ascendtune.check.nodes.node_report import NodeReports, report_of_json
from ascendtune.check.nodes.query import AGENT, query_nodes
from ascendtune.check.nodes.summary import as_json, as_text
from ascendtune.job.nodes.cluster_spec import TargetHost
from python_path import python_path

HERE, ALSO_HERE = TargetHost("localhost"), TargetHost(socket.gethostname())
LOOK = {
    "env": {"HCCL_BUFFSIZE": "400"},
    "directory": "/",
    "codes": ["limits"],
    "facts": True,
    "ports": True,
    "language": "en",
}

_ANSWERING = """
import json, sys, time
for line in sys.stdin:
    said = {"time": time.time() + 60} if "clock" in line else ANSWER
    print(json.dumps(said), flush=True)
"""


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module `bad_agent`."""
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))
    return tmp_path / "bad_agent.py"


def test_two_connections_to_this_machine_give_equal_facts() -> None:
    nodes = query_nodes([HERE, ALSO_HERE], LOOK, limit_seconds=20)
    assert list(nodes.answers) == ["localhost", socket.gethostname()] and not nodes.silent
    answer, also = nodes.answers.values()
    assert [each.code for each in answer.findings] == ["limits"]
    assert answer.facts == also.facts
    assert {"python", "kernel", "open files", "memory"} <= answer.facts.keys()
    assert answer.facts["HCCL_BUFFSIZE"] == "400" and answer.facts["working directory"] == "/"
    # The same clock: no more than what the messages themselves take.
    assert answer.clock.certain_seconds() < 0.05 and answer.clock.within_seconds < 10


def test_only_what_is_asked() -> None:
    nodes = query_nodes([HERE], {**LOOK, "codes": [], "facts": False, "ports": False}, limit_seconds=20)
    assert nodes.answers["localhost"].findings == () and nodes.answers["localhost"].facts == {}


def test_node_answers_in_the_language_of_the_asker() -> None:
    nodes = query_nodes([HERE], {**LOOK, "facts": False, "language": "zh"}, limit_seconds=20)
    assert nodes.answers["localhost"].verdict.startswith("本机")


def test_a_directory_that_is_not_there() -> None:
    nodes = query_nodes([HERE], {**LOOK, "directory": "/no/such"}, limit_seconds=20)
    assert "working directory" not in nodes.answers["localhost"].facts


@pytest.mark.long
def test_silent_agent_is_killed_after_the_limit(agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.write_text("import os, sys, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(60)\n")
    monkeypatch.chdir(agent.parent)
    began = time.monotonic()
    nodes = query_nodes([HERE], LOOK, limit_seconds=1, agent="bad_agent")
    assert time.monotonic() - began < 30
    assert nodes.silent["localhost"].what == "localhost does not answer within 1 s"
    pid = int((agent.parent / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.long
def test_one_that_is_silent_does_not_keep_the_others(agent: Path) -> None:
    agent.write_text(
        f"import os, runpy, time\ntry: os.mkdir({str(agent.parent / 'first')!r})\n"
        f"except FileExistsError: runpy.run_module({AGENT!r}, run_name='__main__')\nelse: time.sleep(60)\n"
    )
    nodes = query_nodes([HERE, ALSO_HERE], LOOK, limit_seconds=4, agent="bad_agent")
    assert len(nodes.answers) == len(nodes.silent) == 1


def test_a_clock_that_is_off(agent: Path) -> None:
    answer = {
        "verdict": "",
        "trains_on": "",
        "findings": [],
        "not_applicable": [],
        "facts": {},
        "ports": [],
        "super_pod": None,
        "address": None,
        "mtu": None,
    }
    agent.write_text(_ANSWERING.replace("ANSWER", repr(answer)))
    clock = query_nodes([HERE], LOOK, limit_seconds=10, agent="bad_agent").answers["localhost"].clock
    assert 59 < clock.certain_seconds() <= clock.ahead_seconds < 61


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit('the disk is full')", "host-connection-ended"),
        ("print('not JSON', flush=True); print('{\"other\": 1}')", "host-of-other-version"),
        (_ANSWERING.replace("ANSWER", "{'findings': 7}"), "host-of-other-version"),
        (_ANSWERING.replace("time.time() + 60", "1e308"), "host-of-other-version"),
    ],
)
def test_the_code_says_why_a_host_has_no_answer(agent: Path, program: str, code: str) -> None:
    agent.write_text(program)
    nodes = query_nodes([HERE], LOOK, limit_seconds=10, agent="bad_agent")
    assert nodes.silent["localhost"].code == code
    assert nodes.silent["localhost"].exit_code == 3


def test_host_without_ascendtune_is_named_with_a_remedy() -> None:
    error = query_nodes([HERE], LOOK, limit_seconds=10, agent="no_such_agent").silent["localhost"]
    assert "No module named no_such_agent" in error.what and "install ascendtune there" in error.remedy


_FINDING = {"code": "disk", "status": "ok", "measured": "9 GiB", "expected": None, "remedy": None, "evidence": ["df"]}
_REPORT = {
    "verdict": "ok", "trains_on": "the CPU", "findings": [_FINDING], "not_applicable": ["npu"],
    "facts": {"python": "3.11"}, "clock": {"ahead_seconds": 0.1, "within_seconds": 0.2}, "address": None,
}  # fmt: skip
_ODD = (7, 1e300, True, [], {}, [1], {"a": 1}, [None], "x")


def test_report_with_an_odd_value_is_refused_or_can_be_compared() -> None:
    refused = 0
    for path in [(name,) for name in _REPORT] + [("findings", 0, name) for name in (*_FINDING, "repair", "other")]:
        for odd in _ODD:
            report = json.loads(json.dumps(_REPORT))
            content = report
            for name in path[:-1]:
                content = content[name]
            content[path[-1]] = odd
            try:
                other = report_of_json(report)
            except (AttributeError, KeyError, TypeError, ValueError):
                refused += 1
                continue
            answers = {"a": report_of_json(_REPORT), "b": other}
            nodes = NodeReports(answers, {})
            compared = compare_nodes(answers)
            as_text("", nodes, compared, (), columns=80, paint=lambda text, *_: text)
            as_json("", 0, nodes, compared, ())
    assert refused > 100
