"""A run directory that another user wrote or may write: its code does not run, and resuming needs consent."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ascendtune.core.rundir import RunDir

if TYPE_CHECKING:
    from tests.integration.conftest import Workshop

pytestmark = pytest.mark.usefixtures("preloaded")

STRANGER = 65534


class Attack:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def sign(checkpoint: Path) -> None:
    """What a stranger can do as well as we can."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != "digests.json")
    digests = {str(path.relative_to(checkpoint)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (checkpoint / "digests.json").write_text(json.dumps(digests))


def into_tensors(checkpoint: Path, marker: Path) -> None:
    torch.save(Attack(marker), checkpoint / "tensors_rank_0.safetensors")


def into_tensors_as_a_bare_pickle(checkpoint: Path, marker: Path) -> None:
    (checkpoint / "tensors_rank_0.safetensors").write_bytes(pickle.dumps(Attack(marker)))


def into_random_state(checkpoint: Path, marker: Path) -> None:
    torch.save({"cpu": Attack(marker)}, checkpoint / "rng" / "rank_0.safetensors")


ATTACKS = [into_tensors, into_tensors_as_a_bare_pickle, into_random_state]


@pytest.fixture(scope="module")
def stopped(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, new_workshop: Callable[[Path], Workshop]
) -> Path:
    """A run of LoRA with a checkpoint, stopped; and one that has finished."""
    place = new_workshop(tmp_path_factory.mktemp("foreign"))
    rows = [{"instruction": f"What is {n} plus one?", "output": f"It is {n + 1}."} for n in range(40)]
    (place.directory / "rows.json").write_text(json.dumps(rows))
    place.write(
        "recipe.yaml",
        {
            "name": "run",
            "model": {"path": str(tiny_model)},
            "data": {"train": "rows.json", "max_length": 64},
            "method": {"tuner": "lora", "lora": {"rank": 4}},
            "optim": {"learning_rate": 1e-3, "max_steps": 4},
            "checkpoint": {"every_steps": 2},
            "track": {"tensorboard": False},
        },
    )
    assert place.run("train", "recipe.yaml").code == 0
    shutil.copytree(place.directory / "runs/run", place.directory / "finished")
    run = RunDir(place.directory / "runs/run")
    shutil.rmtree(run.model)
    run.remove_checkpoints_after(2)
    run.update(state="stopped")
    return place.directory


@pytest.fixture
def place(stopped: Path, workshop: Workshop) -> Workshop:
    shutil.copytree(stopped, workshop.directory, dirs_exist_ok=True)
    return workshop


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_checkpoint_with_a_pickle_runs_no_code(place: Workshop, tmp_path: Path, attack: Callable[..., None]) -> None:
    marker = tmp_path / "code-ran"
    checkpoint = place.directory / "runs/run/checkpoints/step_2"
    attack(checkpoint, marker)
    sign(checkpoint)
    from_it = ("name=other", f"checkpoint.resume={checkpoint}", "--trust-checkpoint")
    resumed = [place.run("train", "recipe.yaml"), place.run("train", "recipe.yaml", *from_it)]
    assert not marker.exists()
    for ended in resumed:
        assert ended.code == 3 and "the checkpoint is damaged" in ended.err and "Traceback" not in ended.err


def test_other_commands_run_no_code_of_a_run(place: Workshop, tmp_path: Path) -> None:
    marker = tmp_path / "code-ran"
    run = RunDir(place.directory / "finished")
    for attack in ATTACKS:
        attack(run.checkpoint(2), marker)
    sign(run.checkpoint(2))
    for name in ("optimizer.pt", "training_args.bin", "pytorch_model.bin", "adapter_model.bin"):
        torch.save(Attack(marker), run.model / name)
    commands = {
        ("runs", "show", "finished"): 0,
        ("runs", "compare", "finished", "finished"): 0,
        ("merge", "finished", "--to", "merged"): 0,
        ("explain", "finished"): None,
        ("generate", "finished", "Hello", "--max-new-tokens", "2"): None,
    }
    for words, code in commands.items():
        ended = place.run(*words)
        assert "Traceback" not in ended.err and code in (None, ended.code), (words, ended.err)
    # Without safetensors PEFT would take the pickle.
    (run.model / "adapter_model.safetensors").unlink()
    for words in (("merge", "finished", "--to", "again"), ("generate", "finished", "Hello"), ("chat", "finished")):
        ended = place.run(*words)
        assert ended.code != 0 and "Traceback" not in ended.err
    assert place.run("train", "recipe.yaml", "name=b", "method.lora.start_from=finished").code == 2
    assert not marker.exists()


def make_foreign(path: Path) -> None:
    for each in (path, *path.rglob("*")):
        os.chown(each, STRANGER, STRANGER)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize(
    ("part", "trusted"),
    [("", 3), ("checkpoints", 0), ("checkpoints/step_2", 0), ("checkpoints/step_2/state.json", 0)],
    ids=["run", "checkpoints", "checkpoint", "file"],
)
def test_run_of_another_user_is_not_resumed(place: Workshop, part: str, trusted: int) -> None:
    run = place.directory / "runs/run"
    make_foreign(run / part)
    ended = place.run("train", "recipe.yaml")
    assert ended.code == 3 and f"belongs to another user (uid {STRANGER})" in ended.err and "chown" in ended.err
    assert place.run("runs", "show", "runs/run").code == 0
    assert place.run("train", "recipe.yaml", "--trust-checkpoint").code == trusted


@pytest.mark.parametrize("mode", [0o775, 0o757], ids=["group", "all"])
@pytest.mark.parametrize("part", ["", "checkpoints/step_2"], ids=["run", "checkpoint"])
def test_run_that_others_may_write_is_not_resumed(place: Workshop, part: str, mode: int) -> None:
    run = place.directory / "runs/run"
    (run / part).chmod(mode)
    ended = place.run("train", "recipe.yaml")
    assert ended.code == 3 and f"other users may write this (mode {mode:o})" in ended.err
    assert "chmod -R go-w" in ended.err
    (run / part).chmod(0o755)
    assert place.run("train", "recipe.yaml").code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_worker_does_not_read_the_recipe_of_another_user(place: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    """It could name a model with code of its own, and trust it."""
    from ascendtune.train import worker

    run = place.directory / "runs/run"
    make_foreign(run / "recipe.yaml")
    assert worker.main([str(run)]) == 3
    assert "belongs to another user" in capsys.readouterr().err


def test_run_made_under_a_wide_umask_is_the_users_alone(place: Workshop) -> None:
    before = os.umask(0o002)
    try:
        first = place.run("train", "recipe.yaml", "name=wide", "optim.max_steps=2")
        assert first.code == 0, first.err
        run = RunDir(place.directory / "runs/wide")
        assert not [str(path) for path in (run.path, *run.path.rglob("*")) if path.stat().st_mode & 0o022]
        run.update(state="stopped")
        assert place.run("train", "recipe.yaml", "name=wide", "optim.max_steps=3", "--allow-change", "optim").code == 0
    finally:
        os.umask(before)
