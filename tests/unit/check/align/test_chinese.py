"""`align --lang zh`: every sentence of the room has a Chinese one with the same names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascendtune.check.align import input_findings, nan, place_remedy, tensor_findings
from ascendtune.check.align.language import say
from ascendtune.cli.main import main

_ROOM = Path(nan.__file__).parent
_CLI = _ROOM.parents[1] / "cli"
_ENGLISH = re.compile(r"\b[A-Za-z]{2,} [A-Za-z]{2,} [A-Za-z]{2,}")
_NAMES = re.compile(r"\{(\w+[^}|]*)\}")


def _said() -> Iterator[str]:
    """Templates in calls of `say` and in `Sentence`s, whose first argument is a code."""
    for path in (*sorted(_ROOM.glob("*.py")), *sorted(_CLI.glob("align*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if not isinstance(node, ast.Call) or name not in ("say", "Sentence", "partial"):
                continue
            template = node.args[name != "say"]
            strings = (each.value for each in ast.walk(template) if isinstance(each, ast.Constant))
            yield from (each for each in strings if isinstance(each, str))


def test_every_sentence_has_a_translation_with_the_same_names() -> None:
    tables = {*tensor_findings._PHASES.values(), *(cause for _, cause in place_remedy._CAUSES)}
    said = {*_said(), *tables, *nan._MADE_BY.values(), place_remedy._UPDATES, input_findings.DATA_REMEDY}
    assert sorted(said - say.chinese.keys() - {"{name}"}) == []
    for english, translated in say.chinese.items():
        assert sorted(_NAMES.findall(english)) == sorted(_NAMES.findall(translated)), english


def test_output_has_no_english_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, keys, paths and numbers are the same in both languages; three English words in a row are a sentence."""
    sides = [tmp_path / f"{name}.csv" for name in ("gpu", "npu")]
    sides[0].write_text("step,loss,grad_norm\n1,2.5,1.5\n2,2.25,1.25\n3,2.125,1.5\n4,2,1\n")
    sides[1].write_text("step,loss,grad_norm\n1,2.5,1.5\n2,2.25,1.25\n3,2.75,9.5\n4,nan,1\n")
    scores = [tmp_path / f"{name}.json" for name in ("one", "other")]
    scores[0].write_text('{"math": [1, 1, 1, 1, 1, 1, 1, 1], "code": [1, 0, 1]}')
    scores[1].write_text('{"math": [0, 0, 0, 0, 0, 0, 0, 0], "code": [1, 0, 1]}')
    page = tmp_path / "align.html"
    for words in (["align", "compare", *sides, "--report", page], ["align", "tasks", *scores]):
        with pytest.raises(SystemExit) as ended:
            main([*map(str, words), "--lang", "zh"])
        printed = capsys.readouterr().out
        assert ended.value.code == 1 and "与" in printed
        assert not _ENGLISH.findall(printed), printed
    text = page.read_text()
    chinese = re.findall(r'<span class="zh">(.*?)</span>', text, re.DOTALL)
    assert len(chinese) > 20 and not [each for each in chinese if _ENGLISH.search(re.sub("<[^>]*>", " ", each))]
    outside = re.sub(r'<span class="(en|zh)">.*?</span>|<style>.*?</style>|<[^>]*>', " ", text, flags=re.DOTALL)
    assert not _ENGLISH.findall(outside), outside
