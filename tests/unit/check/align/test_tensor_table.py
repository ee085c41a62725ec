"""The table of tensors in the report: names are escaped, and the first difference is on top."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.report import write_report
from ascendtune.check.align.stages import compare_trainings
from ascendtune.check.align.training_record import read_training_record

HEADER = {"format": 2, "step": 1, "rank": 0, "world_size": 1, "content": "statistics"}
HOSTILE = "</table><script>alert(1)</script>"


def _side(place: Path, numbers: dict[str, float]) -> Path:
    file = place / "dump" / "step-0000001" / "rank_0.jsonl"
    file.parent.mkdir(parents=True)
    (place / "recorded.json").write_text(json.dumps({"format": 2, "world_size": 1}))
    lines: list[dict[str, Any]] = [HEADER]
    for order, (name, value) in enumerate(numbers.items()):
        what = {"order": order, "phase": "forward", "micro_batch": 0, "name": name, "slot": HOSTILE, "kind": HOSTILE}
        statistics = {"min": value, "max": value, "mean": value, "l2": 2 * value, "nan": 0, "inf": 0}
        of_values = {"shape": [2, 2], "dtype": "float32", **statistics, "hash": f"{value}", "samples": [value]}
        lines.append({**what, **of_values})
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return place


def test_names_from_dumps_are_escaped_and_the_first_difference_is_on_top(tmp_path: Path) -> None:
    one = read_training_record(_side(tmp_path / "a", {"first": 1.0, HOSTILE: 1.0, "last": 1.0}))
    other = read_training_record(_side(tmp_path / "b", {"first": 1.0, HOSTILE: 1.5, "last": 2.0}))
    comparison = compare_trainings(one, other, expected_noise(one, other))
    assert comparison.dumps.place is not None and comparison.dumps.place.module == HOSTILE
    write_report(tmp_path / "a.html", comparison, one, other)
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<script" not in page and "http" not in page
    first, table = page.index('class="first"'), page.index('class="tensors"')
    assert first < table and page.index("&lt;script&gt;", first) < table
    assert page.count('class="heat heat0"') == 2


def test_page_of_dumps_without_losses_hides_the_curves(tmp_path: Path) -> None:
    one = read_training_record(_side(tmp_path / "a", {"first": 1.0}))
    comparison = compare_trainings(one, one, expected_noise(one, one))
    write_report(tmp_path / "a.html", comparison, one, one)
    assert comparison.divergence is None and "<div hidden>" in (tmp_path / "a.html").read_text(encoding="utf-8")
