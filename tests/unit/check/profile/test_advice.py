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


@pytest.mark.parametrize(("packing", "keys"), [(False, {"data.packing": True}), ("auto", {})])
def test_padding_is_named_with_its_share_of_the_computing(tmp_path: Path, packing: Any, keys: dict[str, Any]) -> None:
    events = [step(1, 0, 100), op("aten::mm", 0, 60), op("aten::_foreach_add_", 60, 20)]
    found = advised(tmp_path, *events, padding_ratio=0.4, packing=packing)["padding"]
    # Packing puts other tokens into a step: not a defect.
    assert found.gain == pytest.approx(0.4 * 60e-6) and not found.is_defect and found.keys == keys
    assert "40 %" in found.what
    assert "padding" not in advised(tmp_path, *events, padding_ratio=0.05, packing=packing)


def test_many_small_micro_batches_are_joined_to_the_same_global_batch(tmp_path: Path) -> None:
    events = [step(1, 0, 100), *(op("aten::mm", 10 * at, 6) for at in range(10))]
    found = advised(tmp_path, *events, per_device=1, accumulate=6)["small-micro-batches"]
    assert found.keys == {"batch.per_device": 2, "batch.accumulate": 3} and not found.is_defect
    assert found.gain == pytest.approx(20e-6)
    assert "small-micro-batches" not in advised(tmp_path, *events, per_device=6, accumulate=1)
    busy = [step(1, 0, 100), op("aten::mm", 0, 90)]
    assert "small-micro-batches" not in advised(tmp_path, *busy, per_device=1, accumulate=6)


@pytest.mark.parametrize(("accumulate", "joined"), [(15, 3), (49, 7), (7, 7)])
def test_an_odd_number_of_micro_batches_is_joined_by_its_smallest_divisor(
    tmp_path: Path, accumulate: int, joined: int
) -> None:
    events = [step(1, 0, 100), *(op("aten::mm", 10 * at, 6) for at in range(10))]
    found = advised(tmp_path, *events, per_device=2, accumulate=accumulate)["small-micro-batches"]
    assert found.keys == {"batch.per_device": 2 * joined, "batch.accumulate": accumulate // joined}


@pytest.mark.parametrize("name", ["evaluation", "checkpoint"])
def test_what_interrupts_the_profiled_steps_is_on_the_list(tmp_path: Path, name: str) -> None:
    events = [step(1, 0, 100), op("aten::mm", 0, 40), named(f"ascendtune:phase {name}", 50, 30)]
    found = advised(tmp_path, *events)[f"{name}-in-steps"]
    assert found.gain == pytest.approx(30e-6) and f"{name} takes 0.03 ms" in found.what


def test_long_times_have_no_exponent(tmp_path: Path) -> None:
    events = [step(1, 0, 4e6), op("aten::mm", 0, 1e6), op("aten::copy_", 1e6, 1_234_000)]
    assert "copies take 1,234 ms" in advised(tmp_path, *events)["copies"].what
