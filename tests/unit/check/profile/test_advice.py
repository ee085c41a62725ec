"""What is advised, where the recipe or the strategy of a run decides it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.check.profile.traces import OTHER, Event, named, op, step, write

from ascendtune.check.profile.advice import Advice, advice_for
from ascendtune.check.profile.profile import read_profile


def advised(tmp_path: Path, *events: Event, **facts: Any) -> dict[str, Advice]:
    ranks = read_profile(write(tmp_path / "rank_0.trace.json", list(events), ascendtune=facts))
    return {each.code: each for each in advice_for(ranks)}


@pytest.mark.parametrize(("strategy", "is_named"), [("ddp", True), (None, True), ("fsdp", False)])
def test_buckets_are_those_of_ddp(tmp_path: Path, strategy: str | None, *, is_named: bool) -> None:
    calls = [named("gloo:all_reduce", 10 * number, 8, tid=OTHER) for number in range(10)]
    facts = {"resolved": {"strategy": {"name": strategy}}} if strategy else {}
    found = advised(tmp_path, step(1, 0, 200), op("aten::mm", 110, 50), *calls, **facts)
    assert ("small-buckets" in found) == is_named


@pytest.mark.parametrize(
    ("kernel", "remedy"),
    [
        ("auto", "no recipe key changes that: the reason"),
        ("off", "set kernel.rms_norm: true (this run: the reason)"),
        ({"rms_norm": False}, "set kernel.rms_norm: true (this run: the reason)"),
    ],
)
def test_a_key_that_is_set_already_is_not_advised(tmp_path: Path, kernel: Any, remedy: str) -> None:
    norm = [named("ascendtune:module LlamaRMSNorm", 0, 90), *(op("aten::mul", 20 * at, 15) for at in range(4))]
    facts = {"kernel": kernel, "resolved": {"kernel": {"rms_norm": "the reason"}}}
    found = advised(tmp_path, step(1, 0, 100), *norm, **facts)
    assert found["unfused-norm"].remedy == remedy


def test_the_key_is_named_where_nothing_is_known_of_the_run(tmp_path: Path) -> None:
    norm = [named("ascendtune:module LlamaRMSNorm", 0, 90), *(op("aten::mul", 20 * at, 15) for at in range(4))]
    assert advised(tmp_path, step(1, 0, 100), *norm)["unfused-norm"].remedy == "set kernel.rms_norm: true"
