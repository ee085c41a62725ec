"""`make hardware` on a machine without GPU: the small form, one piece of tests and one of speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascendtune.recipe.recipe import Recipe
from ascendtune.train.plan.estimator import cached_dataset, run_estimator
from ascendtune.train.plan.request import Target
from ascendtune.train.prepare import prepare_data
from python_path import python_path

ROOT = Path(__file__).parents[2]
PIECES = ("test-operators", "speed-tiny-full-256-ascendtune")


def test_small_form_runs_on_the_cpu_and_says_so(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": python_path(ROOT / "benchmarks"), "CUDA_VISIBLE_DEVICES": ""}

    argv = [sys.executable, "-m", "hardware.run", "--results", str(tmp_path), "--only", *PIECES]
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "the small form runs, on the CPU" in ended.stdout
    results = json.loads((tmp_path / "cpu-small" / "results.json").read_text())
    assert results["form"] == "small" and results["pieces"].keys() == set(PIECES)
    assert all(each["state"] == "passed" for each in results["pieces"].values())
    tests = results["pieces"]["test-operators"]["tests"]
    assert {"passed", "skipped"} == {each["state"] for each in tests}
    speed = results["pieces"]["speed-tiny-full-256-ascendtune"]["speed"]
    assert speed["tokens_per_second"] > 0 and speed["planned_bytes"] > 0 and speed["mfu_6n"] is None
    page = (tmp_path / "README.md").read_text()
    assert "Not run on a GPU yet" in page and "| test-operators | passed |" in page


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize("name", ["8b-lora-4k", "1b-full-4k"])
def test_plan_expects_the_memory_that_was_measured_on_an_h200(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    from hardware import cells, speed

    results = json.loads((ROOT / "docs/hardware/nvidia-h200/results.json").read_text())
    measured = results["pieces"][f"speed-{name}-ascendtune"]["speed"]["memory_peak_bytes"]
    cell = cells.cell_of(name)
    model, rows = speed.write_inputs(tmp_path, cell)
    recipe = Recipe.check(speed.recipe_of(cell, model, rows))
    prepare_data(recipe, model)
    target = Target("cuda", "NVIDIA H200", 150_109_880_320, 1)
    estimator = run_estimator(recipe, target, dataset=cached_dataset(recipe), search=False)
    assert estimator.estimate.expected == pytest.approx(measured, rel=0.01)
