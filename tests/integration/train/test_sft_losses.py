"""`fit` with weighted losses, noise on embeddings, Muon, rows and callbacks; evaluations stay plain cross-entropy."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ascendtune.core.rundir import RunDir
from ascendtune.train import Callback, FitResult, Recipe, RunFacts, fit


class Recorder(Callback):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def on_start(self, facts: RunFacts) -> None:
        self.told.append(("start", facts.total_steps))

    def on_step(self, record: dict[str, Any]) -> None:
        self.told.append(("step", record["step"]))

    def on_evaluation(self, record: dict[str, Any]) -> None:
        self.told.append(("evaluation", record["step"]))

    def on_end(self) -> None:
        self.told.append(("end", None))


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    """The callback of the run `dft`."""
    return Recorder()


@pytest.fixture(scope="module")
def runs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, recorder: Recorder) -> dict[str, FitResult]:
    """Runs of three steps on the same rows, for `dft` given as dicts; the rate is so low that weights hardly move."""
    place = tmp_path_factory.mktemp("losses")
    rows = [{"instruction": f"What is {n} plus {n}?", "output": f"It is {2 * n}."} for n in range(40)]
    (place / "rows.json").write_text(json.dumps(rows))
    changes: dict[str, dict[str, Any]] = {
        "plain": {},
        "dft": {"method": {"sft": {"loss": "dft"}}},
        "asft": {
            "method": {"sft": {"loss": "asft", "asft_alpha": 100.0}},
            "optim": {"learning_rate": 1e-3, "scheduler": "constant", "max_steps": 3},
            "checkpoint": {"every_steps": 2},
        },
        "pro": {
            "model": {"path": str(tiny_model), "new_layers": 1},
            "method": {"tuner": "freeze", "freeze": {"spread_layers": 1}},
            "optim": {"learning_rate": 1e-2, "scheduler": "constant", "max_steps": 3},
        },
        "all": {
            "method": {"sft": {"loss": "eaft", "neftune_alpha": 5}},
            "optim": {"optimizer": "muon", "learning_rate": 1e-2, "max_steps": 3},
        },
    }
    return {
        name: fit(
            Recipe.check(
                {
                    "name": name,
                    "run_dir": str(place / "{name}"),
                    "model": {"path": str(tiny_model)},
                    "data": {"train": str(place / "rows.json"), "max_length": 64, "eval_rows": 8},
                    "optim": {"learning_rate": 1e-9, "max_steps": 3},
                    "eval": {"every_steps": 3},
                    "precision": "fp32",
                    "track": {"tensorboard": False},
                    **change,
                }
            ),
            rows=rows if name == "dft" else None,
            callbacks=[recorder] if name == "dft" else [],
        )
        for name, change in changes.items()
    }


def test_dft_weights_the_training_loss_and_not_the_evaluation(runs: dict[str, FitResult]) -> None:
    plain, dft = runs["plain"], runs["dft"]
    assert plain.loss is not None and dft.loss is not None
    # Of about 500 equally likely tokens each has the probability 1/500.
    assert 0 < dft.loss < 0.01 * plain.loss
    assert dft.best_evaluation_loss == pytest.approx(plain.best_evaluation_loss, rel=1e-5)
    assert dft.run.read()["resolved"]["loss"].startswith("dft, ")


def test_asft_begins_as_dft_and_holds_the_model_near_its_start(runs: dict[str, FitResult]) -> None:
    losses = {name: [record["loss"] for record in run.run.read_metrics()] for name, run in runs.items()}
    # Before the first step the divergence is 0; after it, it is not.
    assert losses["asft"][0] == pytest.approx(losses["dft"][0], rel=1e-6)
    assert losses["asft"][1] > 1.05 * losses["dft"][1]


def test_asft_resumes_bit_by_bit(runs: dict[str, FitResult]) -> None:
    whole = runs["asft"].run
    recipe = Recipe.load(whole.recipe)
    again = fit(
        recipe.model_copy(
            update={
                "name": "asft-again",
                "checkpoint": recipe.checkpoint.model_copy(update={"resume": str(whole.checkpoint(2))}),
            }
        )
    )
    expected = [record for record in whole.read_metrics() if record["step"] == 3]
    found = list(again.run.read_metrics())
    assert [(each["step"], each["loss"], each["grad_norm"]) for each in found] == [
        (each["step"], each["loss"], each["grad_norm"]) for each in expected
    ]


def test_new_layer_begins_as_nothing_and_alone_is_trained(runs: dict[str, FitResult], tiny_model: Path) -> None:
    plain, pro = runs["plain"], runs["pro"]
    first = [next(iter(run.run.read_metrics()))["loss"] for run in (plain, pro)]
    assert first[1] == pytest.approx(first[0], rel=1e-6)
    assert pro.best_evaluation_loss is not None and plain.best_evaluation_loss is not None
    assert pro.best_evaluation_loss < plain.best_evaluation_loss
    before, after = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict() for path in (tiny_model, pro.model)
    )
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before.get(name, torch.empty(0)))}
    assert changed and all(name.startswith("model.layers.2.") for name in changed)
    assert after["model.layers.2.mlp.down_proj.weight"].any()


def test_callbacks_are_told_of_every_moment(runs: dict[str, FitResult], recorder: Recorder) -> None:
    steps = [("start", 3), ("step", 1), ("step", 2), ("step", 3), ("evaluation", 3), ("end", None)]
    assert runs["dft"].steps == 3 and recorder.told == steps


def test_metrics_are_a_table(runs: dict[str, FitResult], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    metrics, evaluations = runs["plain"].metrics, runs["plain"].evaluations
    assert [record["step"] for record in metrics] == [1, 2, 3]
    assert [record["step"] for record in evaluations] == [3]
    monkeypatch.undo()
    pandas = pytest.importorskip("pandas")
    table = runs["plain"].metrics
    assert isinstance(table, pandas.DataFrame) and list(table["step"]) == [1, 2, 3]


class FailingCallback(Callback):
    def on_start(self, facts: RunFacts) -> None:
        raise ZeroDivisionError("at the start")

    def on_end(self) -> None:
        raise ValueError("at the end")


def test_a_callback_that_fails_ends_the_run_and_its_display(tiny_model: Path, tmp_path: Path) -> None:
    recipe = {
        "name": "failing",
        "run_dir": str(tmp_path / "{name}"),
        "model": {"path": str(tiny_model)},
        "data": {"train": "replaced", "max_length": 64},
        "optim": {"max_steps": 1},
        "track": {"tensorboard": False},
    }
    rows = [{"instruction": "What is 1 plus 1?", "output": "It is 2."}]
    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError, match="at the start"):
        fit(Recipe.check(recipe), rows=rows, callbacks=[FailingCallback()])
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "silence"]
    assert RunDir(tmp_path / "failing").read()["state"] == "failed"


def test_eaft_noise_and_muon_train_together(runs: dict[str, FitResult]) -> None:
    trained, plain = runs["all"], runs["plain"]
    assert trained.best_evaluation_loss is not None and plain.best_evaluation_loss is not None
    assert trained.best_evaluation_loss < 0.9 * plain.best_evaluation_loss
    assert (trained.model / "model.safetensors").is_file()
