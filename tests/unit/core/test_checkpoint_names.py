"""`run@120`, `run@best`, `run@last`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascendtune.core.checkpoint_names import named_checkpoint, named_weights, split_checkpoint_name, weight_names
from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.rundir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run with checkpoints of steps 4, 8 and 12, whose lowest evaluation loss was at step 8."""
    run = RunDir(tmp_path / "run")
    for step in (4, 8, 12):
        run.checkpoint(step).mkdir(parents=True)
    losses = {4: 2.0, 8: 1.0, 12: float("nan")}
    run.evaluations.write_text(
        "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in losses.items())
    )
    return run


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("run@120", ("run", "120")),
        ("runs/a@best", ("runs/a", "best")),
        ("a@b@last", ("a@b", "last")),
        ("run", ("run", None)),
        ("run@", ("run@", None)),
        ("@120", ("@120", None)),
        ("user@host", ("user@host", None)),
        ("run@²", ("run@²", None)),
    ],
)
def test_a_checkpoint_name_is_split(text: str, parts: tuple[str, str | None]) -> None:
    assert split_checkpoint_name(text) == parts


def test_a_path_that_exists_is_not_a_checkpoint_name(tmp_path: Path) -> None:
    (tmp_path / "run@120").mkdir()
    assert split_checkpoint_name(str(tmp_path / "run@120")) == (str(tmp_path / "run@120"), None)


@pytest.mark.parametrize(("which", "step"), [("4", 4), ("best", 8), ("last", 12)])
def test_a_checkpoint_is_found(which: str, step: int, run: RunDir) -> None:
    assert named_checkpoint(run, which) == run.checkpoint(step)


def test_best_is_that_of_the_newest_evaluation_data(run: RunDir) -> None:
    with run.evaluations.open("a") as file:
        file.writelines(json.dumps({"step": step, "loss": 5.0 - step, "data_hash": "b"}) + "\n" for step in (4, 12))
        file.write(json.dumps({"step": 8, "loss": 3.0, "data_hash": "b"}) + "\n")
    assert named_checkpoint(run, "best") == run.checkpoint(12)
    with run.evaluations.open("a") as file:
        file.write(json.dumps({"step": 4, "loss": 9.0, "data_hash": "c"}) + "\n")
    assert named_checkpoint(run, "best") == run.checkpoint(4)


def test_a_missing_step_lists_the_others(run: RunDir) -> None:
    with pytest.raises(InputError) as caught:
        named_checkpoint(run, "5")
    assert caught.value.code == "checkpoint-missing"
    assert "run@4, run@8, run@12" in caught.value.remedy


def test_a_best_checkpoint_that_was_not_kept_is_refused(run: RunDir) -> None:
    run.checkpoint(8).rmdir()
    with pytest.raises(InputError) as caught:
        named_checkpoint(run, "best")
    assert caught.value.code == "checkpoint-missing" and "checkpoint.best" in caught.value.remedy


def test_best_needs_evaluations(run: RunDir) -> None:
    run.evaluations.unlink()
    with pytest.raises(InputError) as caught:
        named_checkpoint(run, "best")
    assert caught.value.code == "checkpoint-missing"


def test_best_of_a_loss_that_no_float_holds_is_a_damaged_record(run: RunDir) -> None:
    run.evaluations.write_text(f'{{"step": 4, "loss": 1{"0" * 400}}}\n')
    with pytest.raises(MachineError) as caught:
        named_checkpoint(run, "best")
    assert caught.value.code == "record-damaged"


def test_a_run_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        named_checkpoint(RunDir(tmp_path), "last")
    assert caught.value.code == "checkpoint-missing"


def test_the_final_weights_stand_for_their_step(run: RunDir) -> None:
    run.run_json.write_text(json.dumps({"state": "finished", "attempts": [], "exported_step": 16}))
    run.model.mkdir()
    assert named_weights(run, "16") == named_weights(run, "last") == run.model
    assert named_weights(run, "4") == run.checkpoint(4)
    assert weight_names(run) == ["16", "12", "8", "4", "best", "last"]
    with pytest.raises(InputError) as caught:
        named_weights(run, "5")
    assert "run@16" in caught.value.remedy
