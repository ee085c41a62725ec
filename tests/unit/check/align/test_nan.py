"""The tensor of a dump that is named as the first non-finite one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascendtune.check.align.nan import first_non_finite
from ascendtune.core.rundir import RunDir


def row(order: int, phase: str, name: str, slot: str = "output", nan: int = 0, inf: int = 0) -> dict[str, Any]:
    number = 0 if phase in ("forward", "backward", "loss") else None
    return {
        "order": order, "phase": phase, "micro_batch": number, "name": name, "slot": slot, "kind": "Linear",
        "shape": [2, 3], "dtype": "bfloat16", "min": -1.5, "max": 2.0, "nan": nan, "inf": inf,
    }  # fmt: skip


def write(run: RunDir, rows: list[dict[str, Any]], *, step: int = 4, rank: int = 0) -> None:
    directory = run.dumps / f"step-{step:07d}"
    directory.mkdir(parents=True, exist_ok=True)
    header = {"format": 2, "step": step, "rank": rank, "rows": [[3, 1], [7]]}
    lines = "".join(json.dumps(each) + "\n" for each in (header, *rows))
    (directory / f"rank_{rank}.jsonl").write_text(lines)


FIRST = {
    "forward": (
        [row(0, "forward", "a"), row(1, "forward", "b", "input.0"), row(2, "forward", "b", nan=2)],
        "b (Linear)",
    ),
    "function": ([row(0, "forward", "a"), row(1, "forward", "b", "input.0", inf=1)], "before b"),
    "backward": ([row(0, "forward", "a"), row(1, "backward", "a", nan=1)], "backward pass"),
    "gradient": ([row(0, "backward", "a"), row(1, "gradient", "a.weight", "gradient", nan=1)], "gradient of a.weight"),
    "weight": ([row(0, "forward", "a", nan=6), row(9, "parameter_before", "a.weight", "parameter", inf=1)], "weight a"),
    "loss": ([row(0, "forward", "a"), row(1, "loss", "", "loss", nan=1)], "the loss"),
}


@pytest.mark.parametrize(("rows", "named"), FIRST.values(), ids=FIRST)
def test_first_tensor_that_is_not_finite_is_named(tmp_path: Path, rows: list[dict[str, Any]], named: str) -> None:
    run = RunDir(tmp_path)
    write(run, rows)
    found = first_non_finite(run)
    assert found is not None and (found.step, found.rank, found.rows) == (4, 0, (3, 1, 7))
    assert named in found.finding.measured
    assert (found.finding.code, found.finding.status) == ("first-not-finite", "failure")


def test_evidence_is_the_range_of_what_went_in(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    rows = [
        row(0, "forward", "a"), row(1, "forward", "b", "input.0"), row(2, "forward", "b", nan=2),
        row(3, "parameter_before", "b.weight", "parameter"), row(4, "parameter_before", "c.weight", "parameter"),
    ]  # fmt: skip
    write(run, rows)
    found = first_non_finite(run)
    assert found is not None and [line.split(":")[0] for line in found.finding.evidence] == [
        "forward b input.0", "parameter_before b.weight parameter",
    ]  # fmt: skip
    assert "finite values from -1.5 to 2" in found.finding.evidence[0]


def test_rank_that_made_it_first_and_the_newest_step_count(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, [row(0, "forward", "a", nan=1)], step=2)
    write(run, [row(0, "forward", "a"), row(5, "forward", "b", nan=1)], rank=0)
    write(run, [row(0, "forward", "a"), row(3, "forward", "c", nan=1)], rank=1)
    found = first_non_finite(run)
    assert found is not None and (found.step, found.rank, found.row["name"]) == (4, 1, "c")


def test_finite_dump_names_nothing(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert first_non_finite(run) is None
    write(run, [row(0, "forward", "a")])
    assert first_non_finite(run) is None


def test_strange_values_are_not_numbers(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run, [{"order": "x", "phase": 3, "nan": True, "inf": "1"}, {**row(1, "forward", "a", nan=1), "min": "low"}])
    found = first_non_finite(run)
    assert found is not None and "no finite value" in found.finding.measured
