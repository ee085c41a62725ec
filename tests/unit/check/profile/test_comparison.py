"""Two profiles beside each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.check.profile.traces import op, step, write

from ascendtune.check.profile.comparison import compare_profiles, comparison_as_plain, comparison_as_text
from ascendtune.check.profile.profile import RankProfile, read_profile


def profile(path: Path, product: float, extra: str) -> list[RankProfile]:
    return read_profile(
        write(
            path,
            [
                step(1, 0, 1000), op("aten::mm", 0, product), op(extra, 600, 50),
                step(2, 1000, 1000), op("aten::mm", 1000, product), op("aten::mm", 1500, 20),
            ],
        )
    )  # fmt: skip


def test_operators_are_compared_per_step_by_name_and_kind(tmp_path: Path) -> None:
    before = profile(tmp_path / "before.json", 100, "aten::silu")
    now = profile(tmp_path / "now.json", 300, "aten::gelu")
    rows = {row.name: row for row in compare_profiles(now, before)}
    assert [row.name for row in compare_profiles(now, before)] == ["aten::mm", "aten::gelu", "aten::silu"]
    assert rows["aten::mm"].difference == pytest.approx(200e-6)
    assert rows["aten::mm"].calls == rows["aten::mm"].before_calls == 1.5
    assert (rows["aten::silu"].calls, rows["aten::silu"].before_calls) == (0, 0.5)
    text = comparison_as_text(now, before, 100)
    assert "+0.20" in text and "step 1 ms -> 1 ms" in text
    plain = comparison_as_plain(now, before)
    for side in ("before", "now"):
        assert sum(plain[side]["parts_seconds"].values()) == pytest.approx(plain[side]["step_seconds"])


def test_operators_without_a_difference_are_not_listed(tmp_path: Path) -> None:
    one, other = (
        read_profile(write(tmp_path / name, [op("aten::mm", 0, 10), op("aten::add", 10, lasts)]))
        for name, lasts in (("one.json", 10), ("other.json", 110))
    )
    text = comparison_as_text(other, one, 100)
    assert "aten::add" in text and "aten::mm" not in text
    assert "no operator's time differs" in comparison_as_text(one, one, 100)


def test_names_of_operators_have_room_on_a_narrow_terminal(tmp_path: Path) -> None:
    name = "aten::_scaled_dot_product_flash_attention_for_cpu"
    before, now = profile(tmp_path / "before.json", 100, name), profile(tmp_path / "now.json", 300, "aten::gelu")
    for columns in (50, 60, 80, 120):
        lines = comparison_as_text(now, before, columns).splitlines()
        assert all(len(line) <= columns for line in lines)
        assert any(name[:23] in line for line in lines), columns
    assert "attention" in comparison_as_text(now, before, 120).replace(name, "")
