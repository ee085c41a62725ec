"""`ascendtune plan` from the command line, and its estimate against the memory of a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.conftest import Workshop

pytestmark = pytest.mark.usefixtures("preloaded")

_BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def test_the_table_the_verdict_and_changes_that_fit(workshop: Workshop, tiny_model: Path) -> None:
    workshop.write_small_run(tiny_model, batch={"per_device": 4}, precision="bf16")
    fits = workshop.run("plan", "recipe.yaml", "--device", "910b3", "--json")
    assert fits.code == 0, fits.err
    content = json.loads(fits.out)
    assert content["batch"].keys() == {"per_device", "accumulate", "layout"} and content["host_shortage"] is None
    assert content["fits"] is True
    assert content["facts"]["how"] == "2 of 2 layers traced"
    assert content["time"]["step_seconds"]["low"] < content["time"]["step_seconds"]["high"]
    assert "assumption" in content["time"]["basis"]
    least = (content["peak_bytes"]["expected"] - content["at_peak_bytes"]["context"]) // 2**20
    tight = workshop.run("plan", "recipe.yaml", "--memory", f"{max(1, least - 1)}MiB")
    assert tight.code == 1, tight.err
    assert "does not fit" in tight.out
    assert "optimizer state" in tight.out


def test_time_is_that_of_the_run_before(workshop: Workshop, tiny_model: Path) -> None:
    lora = {"tuner": "lora", "lora": {"rank": 2}}
    workshop.write_small_run(tiny_model, method=lora, optim={"max_steps": 4}, track={"tensorboard": False})
    assert workshop.run("train", "recipe.yaml", "--quiet").code == 0
    ended = workshop.run("plan", "--history", "--json")
    (run,) = json.loads(ended.out)
    assert run["features"]["tuner"] == "lora" and run["predicted_seconds"] is None
    planned = workshop.run("plan", "recipe.yaml", "--json")
    assert planned.code == 0, planned.err
    time = json.loads(planned.out)["time"]
    assert "1 past run" in time["basis"] and time["steps"] == 4
    # The same recipe and rows: what is predicted is what was measured.
    assert time["step_seconds"]["expected"] == pytest.approx(run["step_seconds"], rel=0.3)


def test_an_unknown_device_is_a_usage_error(workshop: Workshop, tiny_model: Path) -> None:
    workshop.write_small_run(tiny_model)
    ended = workshop.run("plan", "recipe.yaml", "--device", "910x")
    assert ended.code == 2 and "unknown-device" in ended.err


@pytest.mark.parametrize(
    "keys",
    [
        {"method.stage": "sft", "precision": "fp32", "data.max_length": 256},
        {"method.stage": "sft", "method.tuner": "lora", "precision": "bf16", "memory.gradient_checkpointing": True,
         "data.max_length": 256},
        {"method.stage": "sft", "method.tuner": "lora", "precision": "bf16", "model.quantization": "nf4",
         "model.double_quantization": True, "data.max_length": 256},
    ],
)  # fmt: skip
def test_the_estimate_is_what_training_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    monkeypatch.syspath_prepend(str(_BENCHMARKS))
    import memory_plan

    monkeypatch.setitem(memory_plan.CASES, "case", ("qwen15m", 1, keys))
    peaks = memory_plan.measure(tmp_path, "case", fork=False)["peaks"]
    measured = max(size for phase, size in peaks.items() if phase != "before")
    assert memory_plan.estimate(tmp_path, "case")["expected"] == pytest.approx(measured, rel=0.02)
