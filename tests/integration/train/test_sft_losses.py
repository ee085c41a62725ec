"""Weighted losses, noise on embeddings and Muon in a whole run; evaluations stay the plain cross-entropy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascendtune.recipe.recipe import Recipe
from ascendtune.train.fit import FitResult, fit


@pytest.fixture(scope="module")
def runs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, FitResult]:
    """Runs of three steps on the same rows; the rate is so low that the weights hardly move."""
    place = tmp_path_factory.mktemp("losses")
    rows = [{"instruction": f"What is {n} plus {n}?", "output": f"It is {2 * n}."} for n in range(40)]
    (place / "rows.json").write_text(json.dumps(rows))
    changes: dict[str, dict[str, Any]] = {
        "plain": {},
        "dft": {"method": {"sft": {"loss": "dft"}}},
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
            )
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


def test_eaft_noise_and_muon_train_together(runs: dict[str, FitResult]) -> None:
    trained, plain = runs["all"], runs["plain"]
    assert trained.best_evaluation_loss is not None and plain.best_evaluation_loss is not None
    assert trained.best_evaluation_loss < 0.9 * plain.best_evaluation_loss
    assert (trained.model / "model.safetensors").is_file()
