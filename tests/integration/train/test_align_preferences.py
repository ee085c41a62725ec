"""`ascendtune align` on dumped runs of preference and reward learning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.train.pairs import write_pairs, write_singles

from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.training_record import read_training_record
from ascendtune.train.objective import preference, reward

Make = Callable[..., Any]


def align(reference: Path, candidate: Path) -> TrainingComparison:
    one, other = read_training_record(reference), read_training_record(candidate)
    return compare_trainings(one, other, expected_noise(one, other))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("preferences")
    return {
        "kto": write_singles(directory / "singles.jsonl", 12),
        "sigmoid": write_pairs(directory / "pairs.jsonl", 12),
        "reward": write_pairs(directory / "margins.jsonl", 12, margins=True),
    }


@pytest.fixture
def run(train: Any, files: dict[str, Path]) -> Make:
    def make(loss: str, by: Any = train, **changes: Any) -> Path:
        stage = {"stage": "reward"} if loss == "reward" else {"stage": "preference", "preference": {"loss": loss}}
        asked = {"method": stage, "data": {"train": str(files[loss])}, "align": {"dump_steps": "1-2"}}
        path: Path = by(**asked, optim={"learning_rate": 1e-3, "max_steps": 2}, **changes).run.path
        return path

    return make


def _doubled_beta(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = preference.PAIRED["sigmoid"]
    monkeypatch.setitem(
        preference.PAIRED,
        "sigmoid",
        lambda pairs, options: loss(pairs, options.model_copy(update={"beta": 2 * options.beta})),
    )


def _exchanged_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = preference.kto
    monkeypatch.setattr(preference, "kto", lambda ratio, good, *others: loss(ratio, 1 - good, *others))


def _ignored_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = reward.pairwise_loss
    monkeypatch.setattr(
        reward, "pairwise_loss", lambda chosen, rejected, margin, **named: loss(chosen, rejected, 0 * margin, **named)
    )


CASES = {
    # At the start policy and reference are the same: the first loss does not depend on beta or on the labels.
    "sigmoid": (_doubled_beta, "backward"),
    "kto": (_exchanged_labels, "backward"),
    "reward": (_ignored_margin, "forward"),
}


@pytest.mark.parametrize(("loss", "fault", "stage"), [(loss, *case) for loss, case in CASES.items()], ids=CASES)
def test_divided_batch_is_aligned_and_wrong_objective_is_named(
    run: Make,
    train_on_ranks: Any,
    monkeypatch: pytest.MonkeyPatch,
    loss: str,
    fault: Callable[[pytest.MonkeyPatch], None],
    stage: str,
) -> None:
    reference = run(loss)
    divided = run(loss, lambda **asked: train_on_ranks(2, **asked), batch={"per_device": 1, "accumulate": 2})
    found = align(reference, divided)
    assert found.divergence is None, found.divergence
    assert {"backward", "update"} <= found.dumps.agreeing
    fault(monkeypatch)
    place = align(reference, run(loss)).dumps.place
    assert place is not None and (place.step, place.stage) == (1, stage)
