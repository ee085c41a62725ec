"""Runs that cannot fit are stopped before their weights are loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ascendtune.core.errors import MachineError, NoVerdict
from ascendtune.data.store import TokenDataset
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.plan import before_training, rows
from ascendtune.train.plan.ask import Answer
from ascendtune.train.plan.before_training import require_fit
from ascendtune.train.plan.request import Estimate, Target

_GIB = 2**30


def _recipe(model: Path, tuner: str = "full") -> Recipe:
    return Recipe.check({
        "model": {"path": str(model)}, "data": {"train": [{"path": "x.jsonl"}]}, "method": {"tuner": tuner},
    })  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(_GIB)
    return tmp_path


def _given(monkeypatch: pytest.MonkeyPatch, memory_gib: int, answer: Any) -> list[Any]:
    asked: list[Any] = []

    def ask(*arguments: Any, **_: Any) -> Answer:
        asked.append(arguments)
        if isinstance(answer, Exception):
            raise answer
        return answer

    target = Target("npu", "Ascend910B4", memory_gib * _GIB, 1)
    monkeypatch.setattr(before_training, "target_here", lambda *_: target)
    monkeypatch.setattr(TokenDataset, "open", lambda _: None)
    monkeypatch.setattr(rows, "largest_micro_batch", lambda *_, **__: ())
    monkeypatch.setattr(before_training, "ask", ask)
    return asked


def _estimate(low: int, expected: int, high: int) -> Estimate:
    return Estimate(expected, low, high, "loss", {"weights": expected}, {}, 0, 0, 0, {"how": "traced"})


_PREPARED: Any = SimpleNamespace(train=Path())


def test_a_run_that_cannot_fit_is_refused_with_the_cheapest_change(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = {"keys": {"memory.gradient_checkpointing": True}, "why": "", "expected": 1, "high": 1}
    _given(monkeypatch, 8, Answer(_estimate(9 * _GIB, 10 * _GIB, 11 * _GIB), [change]))
    with pytest.raises(MachineError) as caught:
        require_fit(_recipe(model), model, _PREPARED, devices=1)
    assert caught.value.code == "run-does-not-fit"
    assert "memory.gradient_checkpointing=true" in caught.value.remedy


def test_a_run_that_may_fit_starts_and_its_prediction_is_recorded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _given(monkeypatch, 8, Answer(_estimate(7 * _GIB, 8 * _GIB, 9 * _GIB), []))
    found = require_fit(_recipe(model), model, _PREPARED, devices=1)
    assert found is not None and found["expected_bytes"] == 8 * _GIB


def test_small_models_are_not_estimated(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 16 bytes for each of the half billion parameters of the file; adapters need 2.
    asked = _given(monkeypatch, 40, Answer(_estimate(0, 0, 0), []))
    assert require_fit(_recipe(model), model, _PREPARED, devices=1) is None
    assert require_fit(_recipe(model, "lora"), model, _PREPARED, devices=1) is None
    assert not asked


def test_a_failed_estimate_does_not_stop_the_run(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _given(monkeypatch, 8, NoVerdict("it broke", code="estimate-failed", remedy="none"))
    assert require_fit(_recipe(model), model, _PREPARED, devices=1) is None
