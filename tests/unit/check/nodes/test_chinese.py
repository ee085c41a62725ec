"""`doctor --nodes --lang zh`: every sentence about several machines has a Chinese one with the same names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ascendtune.check.finding import Finding, ok
from ascendtune.check.nodes import language as nodes_language
from ascendtune.check.nodes.compare import compare_nodes
from ascendtune.check.nodes.compared_facts import _LIMITS
from ascendtune.check.nodes.node_report import Clock, NodeReport, NodeReports
from ascendtune.check.nodes.summary import as_text, summary
from ascendtune.core import language
from ascendtune.core.language import Phrases
from ascendtune.job.nodes import host_comparison

_ROOM = Path(nodes_language.__file__).parent
_NAMES = re.compile(r"\{(\w+)(?![^}]*\|)")
_FILES = (Path(host_comparison.__file__), *sorted(_ROOM.glob("*.py")), _ROOM.parents[1] / "cli" / "doctor_nodes.py")


def _said(path: Path) -> Iterator[str]:
    """What a module passes to `say`, and templates that it chooses among before."""
    for node in ast.walk(ast.parse(path.read_text())):
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "say"
        is_template = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "template"
        if is_call or is_template:
            inside = node.args[0] if isinstance(node, ast.Call) else node
            yield from (each.value for each in ast.walk(inside) if isinstance(each, ast.Constant) and each.value != 1)


@pytest.mark.parametrize(
    ("say", "files"),
    [(host_comparison.say, _FILES[:1]), (nodes_language.say, _FILES[1:])],
    ids=["host_comparison", "nodes"],
)
def test_every_sentence_about_nodes_has_a_translation_with_the_same_names(
    say: Phrases, files: tuple[Path, ...]
) -> None:
    said = {sentence for path in files for sentence in _said(path)}
    if say is nodes_language.say:
        said |= {*_LIMITS, "failure", "warning", "unknown", "ok"}

    assert sorted(said - say.chinese.keys()) == []
    for english, translated in say.chinese.items():
        assert sorted(_NAMES.findall(english)) == sorted(_NAMES.findall(translated)), english


def test_differences_are_told_in_chinese() -> None:
    files = Finding("limits", "warning", "打开文件数最多 1024", remedy="ulimit -n 4096")
    alike_one = NodeReport(
        "", "8 NPU (910B4)", (ok("limits", "65536"),), (), {"memory": "64 GiB"}, Clock(0.001, 0.0005)
    )
    odd = replace(alike_one, facts={"memory": "32 GiB"}, findings=(files,))
    answers = NodeReports({"node1": alike_one, "node2": odd, "node3": alike_one}, {})

    with language.using("zh"):
        found = compare_nodes(answers.answers)
        sentence = summary(answers, found, ())
        text = as_text(sentence, answers, found, (), columns=100, paint=lambda text, _: text)

    assert sentence == "node2 不同：内存 在该节点为 32 GiB，在其他 2 个节点为 64 GiB（另有 1 处不同）"
    assert "不同之处" in text and "处理：ulimit -n 4096" in text and text.endswith("全部 3 个节点相同：无")


def test_alike_nodes_are_told_in_chinese() -> None:
    one = NodeReport("", "8 NPU (910B4)", (), (), {"memory": "64 GiB"}, Clock(0.0, 0.0))
    answers = NodeReports({"node1": one, "node2": one}, {})
    with language.using("zh"):
        assert summary(answers, compare_nodes(answers.answers), ()) == "两个节点相同，可以训练，设备：8 NPU (910B4)"
