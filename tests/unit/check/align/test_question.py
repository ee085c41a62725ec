"""Random numbers that two correct trainings draw differently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascendtune.check.align.curve import Curve
from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.training_record import TrainingRecord
from ascendtune.check.align.verdict import verdict

DROPOUT = {"method.tuner": "lora", "method.lora.dropout": 0.1}
GPU = {"resolved": {"device": {"kind": "cuda", "name": "H100"}, "per_device": 4}, "world_size": 1}
NPU = {"resolved": {"device": {"kind": "npu", "name": "910B"}, "per_device": 4}, "world_size": 1}


def compared(recipe: dict[str, Any], *runs: dict[str, Any], apart: float = 0.5) -> TrainingComparison:
    sides = []
    for number, run in enumerate(runs):
        losses = 2.0 + apart * number * np.ones(3)
        columns = {"step": np.arange(1.0, 4.0), "loss": losses}
        curve = Curve.of_columns(columns, [None] * 3, resolution=0.0, source="x")
        sides.append(
            TrainingRecord(
                f"run{number}", Path("x"), "ascendtune", curve, {"method.stage": "sft"} | recipe, run, "fp32"
            )
        )
    return compare_trainings(*sides, expected_noise(*sides))


def with_(run: dict[str, Any], **resolved: Any) -> dict[str, Any]:
    return {**run, "resolved": {**run["resolved"], **resolved}}


@pytest.mark.parametrize(
    ("recipe", "other"),
    [
        (DROPOUT, NPU),
        (DROPOUT, {**GPU, "world_size": 2}),
        (DROPOUT, with_(GPU, per_device=2)),
        ({"method.tuner": "oft", "method.oft.module_dropout": 0.1}, NPU),
        ({"method.sft.neftune_alpha": 5.0}, NPU),
    ],
    ids=["device", "ranks", "micro-batch", "oft", "neftune"],
)
def test_trainings_that_draw_other_numbers_part_in_the_question(recipe: dict[str, Any], other: dict[str, Any]) -> None:
    found = compared(recipe, GPU, other)
    assert found.divergence is not None and found.divergence.code == "question"


@pytest.mark.parametrize(
    ("recipe", "other"),
    [
        ({}, NPU),
        (DROPOUT, GPU),
        ({**DROPOUT, "method.tuner": "full"}, NPU),
        ({"method.stage": "pretrain", "method.sft.neftune_alpha": 5.0}, NPU),
        (DROPOUT, {"resolved": "x", "world_size": 1}),
    ],
    ids=["none drawn", "the same ones", "without effect", "of another stage", "a stranger's record"],
)
def test_other_trainings_part_where_their_losses_do(recipe: dict[str, Any], other: dict[str, Any]) -> None:
    found = compared(recipe, GPU, other)
    assert found.divergence is not None and found.divergence.code == "forward"


def test_recipes_that_differ_are_named_and_no_repetition_is_asked_for() -> None:
    one, other = (
        TrainingRecord(
            name,
            Path(name),
            "ascendtune",
            Curve.of_columns(
                {"step": np.arange(1.0, 9.0), "loss": 2.0 + apart * (np.arange(1.0, 9.0) > 5)},
                [None] * 8,
                resolution=0.0,
                source="x",
            ),
            {"method.stage": "sft", "optim.max_steps": steps, "seed": seed},
            {},
            "fp32",
        )
        for name, apart, steps, seed in (("A", 0.0, 40, 1), ("B", 0.5, 60, 2))
    )
    found = compare_trainings(one, other, expected_noise(one, other))
    assert verdict(found, one, other).startswith("A and B diverge at step 6, question: ")
    assert verdict(found, one, other).endswith("(2): optim.max_steps: 40 and 60; seed: 1 and 2")
    later = next(each for each in found.findings if each.code == "later")
    assert later.status == "failure" and later.remedy == "train the candidate with the reference's recipe.yaml"


def test_dropout_of_the_model_itself_counts(tmp_path: Path) -> None:
    config = {"resid_pdrop": 0.1, "attention_dropout": 0.0, "classifier_dropout": 0.3, "summary_first_dropout": 0.1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    one, other = ({**run, "model_directory": str(tmp_path)} for run in (GPU, NPU))
    found = compared({}, one, other)
    assert found.divergence is not None and found.divergence.code == "question"
    assert "resid_pdrop" in found.divergence.measured and not found.divergence.evidence


def test_equal_losses_are_aligned_whatever_is_drawn() -> None:
    assert compared(DROPOUT, GPU, NPU, apart=0.0).divergence is None
