"""`bench --lang zh`: every sentence has a Chinese one with the same names, and what is written is Chinese."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.unit.check.bench.test_bench import SETTING, no_profile, result

from ascendtune.check.bench import language as bench_language
from ascendtune.check.bench import show
from ascendtune.check.bench.cells import COMPARISONS, RECIPE_STRATEGY, Cell, cells_of
from ascendtune.check.bench.judge import shortfalls, speedup_rows
from ascendtune.check.bench.picture import draw
from ascendtune.check.bench.show import METHOD, as_markdown, table_of
from ascendtune.cli import bench as command
from ascendtune.core import language

_ROOM = Path(bench_language.__file__).parent
_NAMES = re.compile(r"\{(\w+)(?![^}]*\|)")
RESULTS = [
    result(Cell(RECIPE_STRATEGY, 1, 1, 1), 100.0, 90.0, memory=40 << 30, used=0.5),
    result(Cell("ddp", 2, 1, 1), 110.0, memory=60 << 30, used=0.9),
    result(Cell("fsdp", 2, 1, 1)),
]


def _said(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "say":
            yield from (each.value for each in node.args[:1] if isinstance(each, ast.Constant))


def test_every_sentence_has_a_translation_with_the_same_names() -> None:
    chinese = bench_language.say.chinese
    said = {sentence for path in (*_ROOM.glob("*.py"), Path(command.__file__)) for sentence in _said(path)}
    said |= {*COMPARISONS, *show._HEADS, *command._SPARE, METHOD}
    assert sorted(said - chinese.keys()) == [] and sorted(chinese.keys() - said) == []
    for english, translated in chinese.items():
        assert sorted(_NAMES.findall(english)) == sorted(_NAMES.findall(translated)), english


def test_tables_and_shortfalls_are_chinese_and_values_stay() -> None:
    rows = speedup_rows(RESULTS, 64 << 30)
    english = table_of(rows)
    with language.using("zh"):
        short = shortfalls(rows, no_profile, on_host=False, cores=8)
        _, notes = cells_of(devices=[3, 8], strategies=[], per_device=1, accumulate=1)
        text = as_markdown(SETTING, rows, short, notes)
        heads, content = table_of(rows)
    assert "# a\\|b，Ascend 910B3" in text and "## 每设备批量相同" in text and "| 设备数 | 策略 |" in text
    assert "fsdp-2x1x1：out of device memory" in text
    assert "设备利用率 50%：目标是 85% 至 95%" in text and "3 个设备没有相同的全局批量" in text
    # Columns are named by their English heads where they are chosen.
    assert heads == english[0]
    assert [row[3] for row in content if row[3] != "失败"] == [row[3] for row in english[1] if row[3] != "failed"]


def test_the_picture_keeps_chinese_text_as_text(tmp_path: Path) -> None:
    with language.using("zh"):
        draw(tmp_path / "bench.svg", show.title("配方", "Ascend 910B3"), speedup_rows(RESULTS, None))
    text = (tmp_path / "bench.svg").read_text()
    assert all(words in text for words in ("配方，Ascend 910B3", "全局批量相同", "token/s（虚线：线性）", "设备数"))
