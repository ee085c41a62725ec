"""Runs that cannot fit are stopped before their weights are loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ascendtune.core.errors import MachineError, NoVerdict, RecipeError
from ascendtune.data.store import TokenDataset
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.recipe.changes import ResumeOptions
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.flops import ModelFlops, Passes
from ascendtune.train.plan import memory_check, time_estimate
from ascendtune.train.plan.device_table import Speed
from ascendtune.train.plan.estimator import EstimatorResult
from ascendtune.train.plan.memory_check import require_fit, with_batch_size
from ascendtune.train.plan.request import Estimate, Target
from ascendtune.train.plan.work import Steps, Work

_GIB = 2**30
_SIZES = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 20, "vocab_size": 32000}


def _recipe(model: Path, tuner: str = "full") -> Recipe:
    return Recipe.check({
        "model": {"path": str(model)}, "data": {"train": [{"path": "x.jsonl"}]}, "method": {"tuner": tuner},
    })  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(_GIB)
    (tmp_path / "config.json").write_text(json.dumps(_SIZES))
    return tmp_path


def _given(monkeypatch: pytest.MonkeyPatch, memory_gib: int, answer: Any) -> list[Any]:
    asked: list[Any] = []

    def ask(*arguments: Any, **_: Any) -> EstimatorResult:
        asked.append(arguments)
        if isinstance(answer, Exception):
            raise answer
        return answer

    target = Target("npu", "Ascend910B4", memory_gib * _GIB, 1)
    monkeypatch.setattr(memory_check, "target_here", lambda *_: target)
    monkeypatch.setattr(TokenDataset, "open", lambda _: None)
    monkeypatch.setattr(memory_check, "run_estimator", ask)
    return asked


def _estimate(low: int, expected: int, high: int) -> Estimate:
    return Estimate(expected, low, high, "loss", {"weights": expected}, {}, 0, 0, 0, {"how": "traced"})


def _answer(estimate: Estimate, changes: Any = ()) -> EstimatorResult:
    steps, recipe = Steps(None, 1, 1, {1: 1}, 0, 1), _with_batch(Path(), 8)
    return EstimatorResult(estimate, list(changes), None, steps, recipe)


def _with_batch(model: Path, size: int | str) -> Recipe:
    values = _recipe(model).model_dump(mode="json")
    return Recipe.check({**values, "run_dir": str(model / "runs"), "batch": {"per_device": size}})


_PREPARED: Any = SimpleNamespace(train=Path())


def test_a_run_that_cannot_fit_is_refused_with_the_cheapest_change(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = {"keys": {"memory.gradient_checkpointing": True}, "why": "", "expected": 1, "high": 1}
    _given(monkeypatch, 8, _answer(_estimate(9 * _GIB, 10 * _GIB, 11 * _GIB), [change]))
    with pytest.raises(MachineError) as caught:
        require_fit(_recipe(model), model, _PREPARED, devices=1)
    assert caught.value.code == "run-does-not-fit"
    assert "memory.gradient_checkpointing=true" in caught.value.remedy


def test_a_run_that_may_fit_starts_and_its_prediction_is_recorded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _given(monkeypatch, 8, _answer(_estimate(7 * _GIB, 8 * _GIB, 9 * _GIB)))
    found = require_fit(_recipe(model), model, _PREPARED, devices=1)
    assert found is not None and found["expected_bytes"] == 8 * _GIB


@pytest.mark.parametrize(("host_gib", "is_said"), [(None, False), (64, False), (63, True)])
def test_offloading_to_a_host_that_is_too_small_is_said(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    host_gib: int | None,
    *,
    is_said: bool,
) -> None:
    _given(monkeypatch, 8, _answer(replace(_estimate(5 * _GIB, 6 * _GIB, 7 * _GIB), host=64 * _GIB)))
    host = None if host_gib is None else host_gib * _GIB
    target = Target("npu", "Ascend910B4", 8 * _GIB, 1, host_bytes=host)
    monkeypatch.setattr(memory_check, "target_here", lambda *_: target)
    assert require_fit(_recipe(model), model, _PREPARED, devices=1) is not None
    assert bool(caplog.records) is is_said


def test_the_expected_step_time_is_recorded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(ModelFlops(Passes(1e9, 2e9), Passes(), (), True), (), 0, 0, 0, "bf16", "llama")
    estimate = _estimate(7 * _GIB, 8 * _GIB, 9 * _GIB)
    estimate.facts.update(parameters=5, trainable=5, strategy="single")
    _given(monkeypatch, 8, replace(_answer(estimate), work=work))
    monkeypatch.setattr(time_estimate, "speed_of", lambda *_: Speed(flops=1e12, memory=1e12))
    found = require_fit(_recipe(model), model, _PREPARED, devices=1)
    # One token, 3 GFLOP, at the share of the peak that is assumed of an NPU.
    assert found is not None
    assert found["step_seconds"] == pytest.approx(3e9 / (vendor_of("npu").planned.flops_share[1] * 1e12))


def test_a_resumed_run_is_estimated_with_its_own_global_batch(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def fails(*_: Any, **named: Any) -> EstimatorResult:
        given.append(named["global_batch"])
        raise NoVerdict("it broke", code="estimate-failed", remedy="none")

    _given(monkeypatch, 8, None)
    monkeypatch.setattr(memory_check, "run_estimator", fails)
    for size in (None, 12):
        require_fit(_recipe(model), model, _PREPARED, devices=1, global_batch=size)
    assert given == [None, 12]


def test_small_models_are_not_estimated(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 16 bytes for each of the half billion parameters of the file; adapters need 2.
    asked = _given(monkeypatch, 40, _answer(_estimate(0, 0, 0)))
    assert require_fit(_recipe(model), model, _PREPARED, devices=1) is None
    assert require_fit(_recipe(model, "lora"), model, _PREPARED, devices=1) is None
    assert not asked


@pytest.mark.parametrize(
    ("keys", "is_asked"),
    [
        ({"batch": {"per_device": 64}}, True),
        ({"batch": {"per_device": 64}, "memory": {"gradient_checkpointing": True}}, False),
        ({"data": {"max_length": 65536}}, True),
        ({"model": {"init": "random"}}, True),
    ],
)
def test_activations_and_random_weights_are_part_of_the_first_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], *, is_asked: bool
) -> None:
    # A file of 1 MiB, or 0.4 billion random weights of 16 bytes; 2,048 positions keep 1.7 GiB in each row.
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(2**20)
    (tmp_path / "config.json").write_text(json.dumps(_SIZES))
    asked = _given(monkeypatch, 24, _answer(_estimate(0, 0, 0)))
    values = {"model": {"path": str(tmp_path)}, "data": {"train": [{"path": "x.jsonl"}]}}
    merged = {name: {**values.get(name, {}), **keys.get(name, {})} for name in values | keys}
    require_fit(Recipe.check(merged), tmp_path, _PREPARED, devices=1)
    assert bool(asked) == is_asked


def test_a_failed_estimate_does_not_stop_the_run(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _given(monkeypatch, 8, NoVerdict("it broke", code="estimate-failed", remedy="none"))
    assert require_fit(_recipe(model), model, _PREPARED, devices=1) is None


def test_auto_batch_is_refused_without_an_accelerator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_check, "visible_devices", lambda: SimpleNamespace(vendor=vendor_of("cpu")))
    with pytest.raises(RecipeError) as caught:
        with_batch_size(_with_batch(tmp_path, "auto"), ResumeOptions(), devices=1)
    assert caught.value.code == "device-memory-unknown"


def test_auto_batch_becomes_the_number_of_the_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_check, "visible_devices", lambda: SimpleNamespace(vendor=vendor_of("npu")))
    asked = _given(monkeypatch, 8, _answer(_estimate(1, 2, 3)))
    found = with_batch_size(_with_batch(tmp_path, "auto"), ResumeOptions(), devices=1)
    assert found.batch.per_device == 8 and len(asked) == 1
    given = _with_batch(tmp_path, 3)
    assert with_batch_size(given, ResumeOptions(), devices=1) is given


def test_a_resumed_run_keeps_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _given(monkeypatch, 8, _answer(_estimate(1, 2, 3)))
    run = SimpleNamespace(recipe=tmp_path / "recipe.yaml")
    run.recipe.write_text(_with_batch(tmp_path, 5).to_yaml())
    choice = SimpleNamespace(run=run, resumed=tmp_path)
    monkeypatch.setattr(memory_check, "planned_run", lambda *_: choice)
    found = with_batch_size(_with_batch(tmp_path, "auto"), ResumeOptions(), devices=1)
    assert found.batch.per_device == 5 and not asked


def test_an_auto_batch_that_nothing_chose_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        _ = _with_batch(tmp_path, "auto").batch.micro_batch
    assert caught.value.code == "batch-not-chosen"
