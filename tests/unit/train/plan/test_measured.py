"""Measured steps: the rows that they are made of, and the estimate that they correct."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import AscendtuneError
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.flops import ModelFlops, Passes
from ascendtune.train.plan.device_table import Speed
from ascendtune.train.plan.estimator import EstimatorResult
from ascendtune.train.plan.measured import (
    STEPS,
    MeasuredRun,
    as_past_run,
    corrected,
    keys_of_measurement,
    read_measured,
    write_full_rows,
)
from ascendtune.train.plan.request import Estimate, Target
from ascendtune.train.plan.time_estimate import TimeEstimate, estimate_time, features_of
from ascendtune.train.plan.work import Steps, Work

_FLOPS = ModelFlops(Passes(2e6, 4e6, 2e6), Passes(1e6, 2e6), ((None, Passes(10.0, 20.0, 10.0)),), True)
_WORK = Work(_FLOPS, (), 8_000_000, 300, 100, "bf16", "llama")
_STEPS = Steps(100, 4000.0, 1000.0, {100: 40}, 0.2, 0.5)
_ESTIMATE = Estimate(
    expected=1000, low=850, high=1200, moment="forward", at_peak={"weights": 700, "loss": 300},
    moments={"forward": 1000}, resting=600, host=50, context=10,
    facts={"parameters": 5, "trainable": 5, "strategy": "single"},
)  # fmt: skip


def recipe_of(**keys: Any) -> Recipe:
    return Recipe.check({"name": "a", "model": {"path": "x"}, "data": {"train": "x.jsonl", "max_length": 32}, **keys})


def answer_of(recipe: Recipe) -> EstimatorResult:
    return EstimatorResult(_ESTIMATE, [], _WORK, _STEPS, recipe)


@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ({"stage": "pretrain"}, {"text"}),
        ({"stage": "sft"}, {"messages"}),
        ({"stage": "reward"}, {"prompt", "chosen", "rejected"}),
        ({"stage": "preference", "preference": {"loss": "kto"}}, {"prompt", "completion", "label"}),
    ],
)
def test_every_row_is_longer_than_the_limit(tmp_path: Path, method: dict[str, Any], keys: set[str]) -> None:
    recipe = recipe_of(method=method, batch={"per_device": 3, "accumulate": 2})
    write_full_rows(tmp_path / "rows.jsonl", recipe)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == 12 and all(set(row) == keys for row in rows)
    # 16 letters and blanks for each of 32 tokens, in every answer.
    assert all(len(json.dumps(row)) > 16 * 30 for row in rows)


def test_the_measurement_trains_the_recipe_with_other_rows(tmp_path: Path) -> None:
    recipe = recipe_of(optim={"epochs": 3}, batch={"per_device": 4})
    words = keys_of_measurement(recipe, tmp_path / "rows.jsonl", "a-measure")
    values = recipe.model_dump(mode="json")
    assert f"optim.max_steps={STEPS + 2}" in words and "batch.per_device=4" in words
    assert values["data"]["train"][0]["path"] not in " ".join(words)


@pytest.mark.parametrize("held_out", [{"eval": "y.jsonl"}, {"eval_fraction": 0.1}, {"eval_rows": 8}])
def test_the_measurement_needs_no_evaluation_data_and_no_tracker(tmp_path: Path, held_out: dict[str, Any]) -> None:
    path = tmp_path / "recipe.json"
    values = {
        "model": {"path": "x"},
        "data": {"train": "x.jsonl", **held_out},
        "eval": {"every_steps": 5, "early_stop": {"patience": 2}},
        "checkpoint": {"best": True},
        "track": {"send_to": ["wandb"], "host": "http://localhost"},
        "align": {"dump_steps": "1-3"},
    }
    path.write_text(json.dumps(values))
    measured = Recipe.load(path, keys_of_measurement(Recipe.load(path), tmp_path / "rows.jsonl", "a-measure"))
    assert not (measured.data.eval or measured.data.eval_fraction or measured.data.eval_rows)
    assert (measured.track.send_to, measured.align.dump_steps) == ([], None)


def test_correction_keeps_the_sum_and_leaves_the_host_alone() -> None:
    found = corrected(_ESTIMATE, 1.1)
    assert found.expected == sum(found.at_peak.values()) == 1100
    assert (found.low, found.high, found.resting) == (935, 1320, 660)
    assert (found.host, found.context) == (50, 10)
    assert Counter(corrected(_ESTIMATE, 1.0).at_peak) == Counter(_ESTIMATE.at_peak)


@pytest.mark.parametrize(("kind", "measured"), [("cuda", 1500), ("cpu", None)])
def test_memory_is_compared_where_the_device_counts_tensors(tmp_path: Path, kind: str, measured: int | None) -> None:
    run, target = RunDir(tmp_path / "run"), Target(kind, "card", 1 << 30, 1)
    run.create("", {}, {})
    lines = [{"step": step, "seconds": {"step": 3.0 / step}, "memory_peak_bytes": 750 * step} for step in (1, 2, 3)]
    run.metrics.write_text("".join(json.dumps(each) + "\n" for each in lines))
    found = read_measured(run, answer_of(recipe_of()), 1.0, target)
    assert found == MeasuredRun(str(run), 1000, measured, 1.0, 1.5)
    assert found.memory_factor == (1.5 if measured else 1.0)


def test_a_run_that_ended_too_early_is_refused(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    with pytest.raises(AscendtuneError) as caught:
        read_measured(run, answer_of(recipe_of()), None, Target("cpu", "host", 1 << 30, 1))
    assert caught.value.code == "nothing-measured"


def test_the_time_from_the_measurement_is_the_measured_one() -> None:
    recipe, target = recipe_of(), Target("cuda", "card", 1 << 30, 2)
    past = as_past_run(MeasuredRun("run", 1000, 1100, None, 0.25), answer_of(recipe), target, "card")
    assert past is not None and past.step_seconds == 0.25
    features = features_of(_WORK, _STEPS, recipe, target, _ESTIMATE.facts)
    found = estimate_time(_WORK, _STEPS, recipe, target, Speed(), features, [past])
    assert isinstance(found, TimeEstimate)
    assert found.step_seconds.expected == pytest.approx(0.25)
