"""Real logs: failures out of public issue threads, each with the words of its first cause; and runs that went well."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from ascendtune.check.explain.explain import explain

_THREADS = Path(__file__).parents[3] / "fixtures" / "explain" / "threads"
_RIGHT_RATIO = 0.9


def _index() -> list[dict[str, str]]:
    with (_THREADS / "index.tsv").open() as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_first_causes_of_real_failures() -> None:
    """Right is: something is known about it, and the line shown is the one that the thread's solution speaks of."""
    wrong = []
    index = _index()
    for row in index:
        first = explain([str(_THREADS / f"{row['id']}.log")]).verdict.first
        if first is None or first.hit is None or row["guilty"] not in first.text:
            wrong.append(row["id"])

    assert len(index) >= 30
    assert len(wrong) <= (1 - _RIGHT_RATIO) * len(index), wrong


@pytest.mark.parametrize("log", sorted((_THREADS / "healthy").glob("*.log")), ids=lambda path: path.stem)
def test_silent_on_logs_of_runs_that_went_well(log: Path) -> None:
    explanation = explain([str(log)])

    assert explanation.is_healthy, explanation.headline()
