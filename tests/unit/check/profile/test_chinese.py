"""`profile --lang zh`: every sentence has a Chinese one with the same names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.check.profile.traces import named, op, step, write

from ascendtune.check.profile import language as profile_language
from ascendtune.check.profile.advice import advice_for
from ascendtune.check.profile.comparison import comparison_as_text
from ascendtune.check.profile.kinds import KINDS
from ascendtune.check.profile.memory import CATEGORIES
from ascendtune.check.profile.profile import read_profile
from ascendtune.check.profile.show import as_text, parts_of
from ascendtune.check.profile.split import ASIDE, Split
from ascendtune.cli import profile as profile_command
from ascendtune.core import language
from ascendtune.core.terminal_text import columns_of
from ascendtune.train.kernel import install

_ROOM = Path(profile_language.__file__).parent
_COMMAND = Path(profile_command.__file__)
_FILES = (*sorted(_ROOM.glob("*.py")), _COMMAND, _COMMAND.with_name("profile_trial.py"))
_NAMES = re.compile(r"\{(\w+)(?![^}]*\|)")


def _said(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "say":
            yield from (each.value for each in node.args[:1] if isinstance(each, ast.Constant))


def test_every_sentence_has_a_translation_with_the_same_names() -> None:
    chinese = profile_language.say.chinese
    said = {sentence for path in _FILES for sentence in _said(path)} | {*KINDS, *CATEGORIES, *ASIDE}
    said |= {title for title, *_ in parts_of(Split([1.0], on_device=False))}
    assert len(said) > 60
    assert sorted(said - chinese.keys()) == []
    for english, translated in chinese.items():
        assert sorted(_NAMES.findall(english)) == sorted(_NAMES.findall(translated)), english


def test_reasons_for_a_models_own_kernels_have_a_translation() -> None:
    chosen = [
        node.args[0]
        for node in ast.walk(ast.parse(Path(install.__file__).read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "KernelChoice"
    ]
    reasons = {each.value for each in chosen if isinstance(each, ast.Constant)}
    reasons |= {f"the model's own: no fused operator on {kind}" for kind in ("cpu", "cuda", "npu")}
    assert len(reasons) == 5 and reasons <= profile_language.say.chinese.keys()


@pytest.mark.parametrize("columns", [60, 100])
def test_a_profile_is_shown_in_chinese(tmp_path: Path, columns: int) -> None:
    events = [
        step(1, 0, 1000), named("ascendtune:phase data", 0, 400), op("aten::mm", 400, 500),
        named("ascendtune:phase forward", 900, 50), op("aten::to", 900, 50),
    ]  # fmt: skip
    ranks = read_profile(write(tmp_path / "trace.json", events))
    with language.using("zh"):
        text = "\n".join([as_text(ranks, advice_for(ranks), columns), comparison_as_text(ranks, ranks, columns)])
    assert "矩阵乘 50.0" in text and "没有算子的时间不同" in text
    assert "每步有 0.4 ms 在准备批数据" in text
    assert [line for line in text.splitlines() if columns_of(line) > columns] == []
