"""`--lang zh`: the sentences of explain itself, and those of its knowledge."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from ascendtune.check import explain
from ascendtune.check.explain.answer import report
from ascendtune.check.explain.answer.report import as_text
from ascendtune.check.explain.event import unmatched
from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.facts import memory
from ascendtune.check.explain.knowledge.entries import (
    KnownFailure,
    chinese,
    chinese_of_raised,
    entries,
    raised_entries,
)
from ascendtune.check.explain.knowledge.matcher import filled
from ascendtune.check.explain.rank import missing_report, rank_phase
from ascendtune.core import language
from ascendtune.core.terminal_text import columns_of

_ROOM = Path(explain.__file__).parent
_NAMES = re.compile(r"\{(\w+)(?![^}]*\|)")


def _said() -> Iterator[str]:
    """Every template that a module of the room passes to `say`."""
    for path in sorted(_ROOM.rglob("*.py")):
        module = import_module(".".join((explain.__name__, *path.relative_to(_ROOM).with_suffix("").parts)))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "say":
                for part in ast.walk(node.args[0]):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.value
                    elif isinstance(part, ast.Name) and isinstance(getattr(module, part.id, None), str):
                        yield getattr(module, part.id)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_Block":
                yield from (
                    each.value
                    for each in ast.walk(node.args[0])
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                )


def test_every_sentence_of_explain_has_a_translation_with_the_same_names() -> None:
    phases = (phase for phase, _ in rank_phase._PHASES)
    unknown = [each for each in vars(unmatched).values() if isinstance(each, KnownFailure)]
    own = (sentence for each in unknown for sentence in (each.what, *each.remedies))
    said = {*_said(), *phases, *rank_phase.REMEDIES.values(), *missing_report._ODD.values(), *own} - {""}

    assert sorted(said - report.say.chinese.keys()) == []
    for english, translated in report.say.chinese.items():
        assert sorted(_NAMES.findall(english)) == sorted(_NAMES.findall(translated)), english


def test_translated_entries_have_the_sentences_of_the_english_ones() -> None:
    by_id = {entry.id: entry for entry in (*entries(), *raised_entries())}

    for name, words in {**chinese(), **chinese_of_raised()}.items():
        entry = by_id[name]
        assert len(words.causes) == len(entry.causes), name
        assert len(words.remedies) == len(entry.remedies), name
        for english, translated in zip(entry.remedies, words.remedies, strict=True):
            assert set(_NAMES.findall(english)) == set(_NAMES.findall(translated)), name
        assert (
            set(re.findall(r"\{(\w+)\}", " ".join((words.what, *words.causes, *words.remedies)))) <= entry.captured
        ), name


def test_translated_entries_keep_placeholders_options_and_variables() -> None:
    code = re.compile(r"\{\w+\}|(?<![\w-])--[a-z][a-z0-9-]+|\b[A-Z][A-Z0-9]*_[A-Z0-9_]+(?==)")
    lost = []
    for table, translated in ((entries(), chinese()), (raised_entries(), chinese_of_raised())):
        for entry in table:
            words = translated[entry.id]
            english, told = ((each.what, *each.causes, *each.remedies) for each in (entry, words))
            for one, other in zip(english, told, strict=True):
                lost += [(entry.id, each) for each in code.findall(one) if each not in other]
    assert lost == []


def test_messages_of_packages_are_explained_in_chinese() -> None:
    assert [entry.id for entry in raised_entries() if entry.id not in chinese_of_raised()] == []


def test_chinese_answer_is_wrapped_and_keeps_the_original_line(explained: Callable[..., Explanation]) -> None:
    said = (
        "RuntimeError: NPU out of memory. Tried to allocate 20.00 GiB (NPU 3; 60.96 GiB total capacity; "
        "49.47 GiB already allocated; 1.32 GiB free; 57.55 GiB reserved in total by PyTorch)"
    )
    explanation = explained(f"{said}\n")
    with language.using("zh"):
        lines = as_text(explanation, columns=80, paint=lambda text, _: text).splitlines()

    assert all(columns_of(line) <= 80 for line in lines if "/" not in line)
    assert any(line.startswith("把握     出错之处确定") for line in lines)
    assert "".join(said.split()) in "".join("".join(lines).split())
    assert explanation.sureness.startswith("certain what broke")


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("调用失败（{call}）；原因见它下面的错误块", "调用失败；原因见它下面的错误块"),
        ("CANN 的原话：{message}", "CANN 的原话"),
        ("库（需要 {needed}，上限 {limit}）太小", "库太小"),
        ("{host} 上的进程退出", "某项内容 上的进程退出"),
        ("设备{device}失去心跳", "设备失去心跳"),
    ],
)
def test_name_that_was_not_captured_is_left_out_with_full_width_brackets(template: str, shown: str) -> None:
    with language.using("zh"):
        assert filled(template, {}) == shown


def test_failure_without_an_entry_is_told_in_chinese(explained: Callable[..., Explanation]) -> None:
    with language.using("zh"):
        explanation = explained(
            'Traceback (most recent call last):\n  File "a.py", line 3, in go\n    go()\nOddError\n'
        )
        assert explanation.headline() == "Python 报错 OddError（在 go 中）：go()"


def test_missing_ranks_are_told_in_chinese() -> None:
    with language.using("zh"):
        what = missing_report.Missing((2, 3), (0,), last_line="x", phase="loading the model").what
    assert what == "rank 2-3 没有加入（当时在加载模型）：另外 1 个 rank 一直等到超时"


def test_sums_are_named_in_chinese() -> None:
    sums = memory.sums_in("Tried to allocate 2.00 GiB")

    assert sums is not None
    with language.using("zh"):
        assert sums.line() == "申请 2.0 GiB"
