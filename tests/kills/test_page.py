"""The page of kills: where an operation belongs, and rows that replace older ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from kills import run


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("run/checkpoints/.step_2.1/model.safetensors", "checkpoint"),
        ("checkpoints/step_2", "checkpoint"),
        (".model.1-2/model.safetensors", "export"),
        ("run/model", "export"),
        ("run/run.json", "other files"),
        ("run", "other files"),
    ],
)
def test_operation_belongs_to_a_place(path: str, place: str) -> None:
    assert run.place_of(path) == place


def test_new_row_replaces_the_old_one_and_sums_are_those_of_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "PAGE", tmp_path / "kills.md")
    for kills, lost in ((1, []), (3, ["once"])):
        run.write_row(run.Cell("fsdp", 1, {"checkpoint": f"{kills} of 9"}, lost).row())
        run.write_row(run.Cell("single", 0, {"merge": "4 of 4", "export": "2 of 7"}).row())
    rows = [line.split(" | ")[:7] for line in run.PAGE.read_text().splitlines() if "| rank" in line]
    assert rows == [
        ["| single", "rank 0", "", "2 of 7", "", "4 of 4", "0"],
        ["| fsdp", "rank 1", "3 of 9", "", "", "", "1"],
    ]
    assert "Together 9 kills; 1 lost something." in run.PAGE.read_text()
