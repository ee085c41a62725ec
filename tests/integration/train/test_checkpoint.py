"""Checkpoints: their content, the order of their writes, and resuming bit by bit."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from ascendtune.core.files import write_atomically
from ascendtune.core.rundir import RunDir
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.train import Recipe, attempt
from ascendtune.train.checkpoint.checkpointer import Checkpointer
from ascendtune.train.checkpoint.tensor_files import Staging
from ascendtune.train.evaluate import Evaluation
from ascendtune.train.prepare import prepare_run
from ascendtune.train.strategy.base import Strategy
from ascendtune.train.strategy.ddp import DdpStrategy

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

EXACT = ("step", "loss", "grad_norm", "learning_rate", "batch_hash", "tokens_seen")


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_run_continues_bit_by_bit(recipe: Callable[..., Recipe], train: Train, dropout: float) -> None:
    changes: dict[str, Any] = {
        # A learning rate at which the optimizer's memory shows.
        "method": {"tuner": "lora", "lora": {"rank": 4, "dropout": dropout}},
        "optim": {"max_steps": 5, "learning_rate": 0.01},
        "checkpoint": {"every_steps": 2, "keep": 9, "resume": "auto"},
    }
    trained = train(**changes)
    run, whole, weights = trained.run, list(trained.run.read_metrics()), trained.weights()
    shutil.rmtree(run.model)
    run.remove_checkpoints_after(2)
    run.update(state="running")

    again = prepare_run(recipe(**changes), {}).run
    assert again is not None and again.path == run.path
    torch.manual_seed(99)
    attempt.train(again, again.read())
    assert [[each[key] for key in EXACT] for each in again.read_metrics()] == [
        [each[key] for key in EXACT] for each in whole
    ]
    assert all(torch.equal(weight, weights[name]) for name, weight in trained.weights().items())


def test_the_best_checkpoint_stays_until_the_next_best_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _, checkpointer = small_checkpointer(tmp_path, keep=1)
    content, goes_on = checkpointer._content, threading.Event()

    def write_late(directory: Path, files: dict[str, bytes]) -> Future[Any]:
        written = content_write(directory, files)
        return ThreadPoolExecutor(1).submit(lambda: goes_on.wait(20) and written.result())

    checkpointer.save(1, {}, protected=1)
    checkpointer.wait()
    content_write = content.write
    monkeypatch.setattr(content, "write", write_late)
    checkpointer.save(2, {}, protected=1)
    goes_on.set()
    checkpointer.wait()
    assert run.checkpoint_steps() == [1, 2]
    checkpointer.save(3, {}, protected=3)
    checkpointer.wait()
    assert run.checkpoint_steps() == [3]


def test_no_rank_reads_the_best_checkpoint_before_the_main_rank_has_completed_it(
    train_on_ranks: Train, other_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main rank still flushes and renames it when the others have nothing left to write, or to train."""
    finish, losses = Checkpointer._finish, iter([1.0, 2.0])

    def finish_late(*arguments: Any) -> None:
        time.sleep(3)
        finish(*arguments)

    monkeypatch.setattr(Checkpointer, "_finish", finish_late)
    monkeypatch.setattr("ascendtune.train.loop.evaluate", lambda *_: Evaluation(next(losses), {}, 1))
    trained = train_on_ranks(
        2, optim={"max_steps": 2}, batch={"per_device": 2}, parallel={"strategy": "fsdp"},
        data={"eval": str(other_rows)}, eval={"every_steps": 1}, checkpoint={"best": True},
    )  # fmt: skip
    assert trained.run.read()["exported_step"] == 1


def test_failure_of_the_training_waits_for_the_checkpoint_that_is_being_written(
    recipe: Callable[..., Recipe], on_ranks: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the first rank ends, torchrun ends the main rank, which still completes the checkpoint."""
    finish, backward, steps = Checkpointer._finish, DdpStrategy.backward, count(1)

    def finish_late(*arguments: Any) -> None:
        time.sleep(3)
        finish(*arguments)

    def fail(*arguments: Any) -> None:
        if next(steps) == 3:
            raise ValueError("in step 3")
        backward(*arguments)

    def train() -> None:
        with pytest.raises(ValueError, match="in step 3"):
            attempt.train(run, run.read())
        assert os.environ["RANK"] == "1" or run.checkpoint_steps() == [2]

    monkeypatch.setattr(Checkpointer, "_finish", finish_late)
    monkeypatch.setattr(DdpStrategy, "backward", fail)
    asked = recipe(batch={"per_device": 2}, parallel={"strategy": "ddp"}, checkpoint={"every_steps": 2})
    run = prepare_run(asked, {}).run
    assert run is not None
    on_ranks(2, train)


def small_checkpointer(directory: Path, keep: int = 9) -> tuple[RunDir, torch.nn.Linear, Checkpointer]:
    run = RunDir(directory)
    run.create("", {}, {})
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(8)).sum().backward()
    optimizer.step()
    strategy = Strategy(find_device())
    return run, model, Checkpointer(run, strategy, strategy.checkpoint_content(model, optimizer), keep=keep)


def test_changes_after_save_are_not_in_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written while training goes on: the copy must be made before `save` returns."""
    go_on, write = threading.Event(), Staging.write

    def write_later(staging: Staging, path: Path) -> str:
        go_on.wait(20)
        return write(staging, path)

    monkeypatch.setattr(Staging, "write", write_later)
    run, model, checkpointer = small_checkpointer(tmp_path / "run")
    expected = model.weight.detach().clone()
    checkpointer.save(3, {})
    with torch.no_grad():
        model.weight.zero_()
    assert run.checkpoint_steps() == []
    go_on.set()
    checkpointer.wait()
    found = load_file(run.checkpoint(3) / "tensors_rank_0.safetensors")
    assert torch.equal(found["model.weight"], expected)


@dataclass
class Disk:
    """Sees what is flushed and what is renamed. A file counts as flushed as long as its size has not changed since."""

    flushed: dict[int, int] = field(default_factory=dict)
    """inode -> size at its last flush"""
    unflushed: list[str] = field(default_factory=list)
    """Files that got their name before their content was on the disk."""
    waiting: set[Path] = field(default_factory=set)
    """Directories in which something was renamed, not flushed since."""
    renamed: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """Checkpoints are written by another thread than the rest."""

    def note_flush(self, descriptor: int) -> None:
        facts = os.fstat(descriptor)
        with self.lock:
            self.flushed[facts.st_ino] = facts.st_size
            self.waiting = {path for path in self.waiting if path.stat().st_ino != facts.st_ino}

    def note_rename(self, source: Path, target: Path) -> None:
        if target.name.startswith("."):
            return  # not a name that anybody reads
        files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
        with self.lock:
            for file in files:
                facts = file.stat()
                if self.flushed.get(facts.st_ino) != facts.st_size:
                    self.unflushed.append(f"{file.name} of {target.name}")
            self.renamed.append(target.name)
            self.waiting.add(target.parent)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    seen = Disk()
    fsync = os.fsync

    def flush(file: Any) -> None:
        fsync(file)
        seen.note_flush(file if isinstance(file, int) else file.fileno())

    monkeypatch.setattr(os, "fsync", flush)
    for name in ("rename", "replace"):
        move = getattr(os, name)

        def watched(source: Any, target: Any, move: Callable[..., None] = move) -> None:
            seen.note_rename(Path(source), Path(target))
            move(source, target)

        monkeypatch.setattr(os, name, watched)
    return seen


def test_a_file_gets_its_name_when_its_content_is_on_the_disk(disk: Disk, tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "content")
    assert disk.renamed == ["a"]
    assert disk.unflushed == [] and disk.waiting == set()


def test_a_checkpoint_gets_its_name_when_its_content_is_on_the_disk(disk: Disk, tmp_path: Path) -> None:
    run, _, checkpointer = small_checkpointer(tmp_path / "run")
    checkpointer.save(3, {})
    checkpointer.wait()
    assert "step_3" in disk.renamed
    names = {path.name for path in run.checkpoint(3).rglob("*")}
    assert {"state.json", "rank_0.safetensors", "tensors_rank_0.safetensors", "digests.json"} <= names
    assert disk.unflushed == [] and disk.waiting == set()


def test_everything_that_a_run_leaves_was_flushed_before_it_was_named(disk: Disk, train: Train) -> None:
    # A length of its own, so that the tokens are not in the cache.
    train(data={"max_length": 120}, optim={"max_steps": 3}, checkpoint={"every_steps": 2})
    assert {"step_2", "model", "run.json", "recipe.yaml", "prepared.json"} <= set(disk.renamed)
    assert disk.unflushed == [] and disk.waiting == set()
