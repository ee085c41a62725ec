"""The free space that a run asks for before its first step is what its checkpoints ask for later."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from ascendtune.core.errors import MachineError
from ascendtune.core.rundir import RunDir
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import CheckpointSection
from ascendtune.train.checkpoint.checkpointer import Checkpointer, require_space_for_run
from ascendtune.train.checkpoint.content import NamedTensors
from ascendtune.train.checkpoint.size import checkpoint_bytes
from ascendtune.train.optimizer import make_optimizer, tables_of
from ascendtune.train.strategy.base import Strategy

Usage = namedtuple("Usage", "total used free")
MODEL = torch.nn.Linear(64, 64, bias=False)
CHECKPOINT, FINAL = 3 * 4 * 64 * 64, 2 * 64 * 64


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    return run


def _refuses(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, *, free: int, keep: int = 1, written: int = 10, done: int = 0
) -> bool:
    """Whether a run that writes so many checkpoints does not begin with `free` bytes."""
    section = CheckpointSection(keep=keep)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, free))
    try:
        require_space_for_run(run, section, checkpoint=CHECKPOINT, model=FINAL, written=written, done=done)
    except MachineError as error:
        assert error.code == "disk-space-missing"
        return True
    return False


class SecondRank(Strategy):
    """The second of two ranks, whose first one finds `free_on_main` bytes."""

    def __init__(self, free_on_main: int) -> None:
        super().__init__(find_device())
        self.rank, self.world_size = 1, 2
        self._free_on_main = free_on_main

    def gather(self, text: str) -> list[str]:
        return [str(self._free_on_main), text]


def _can_save(run: RunDir, monkeypatch: pytest.MonkeyPatch, *, free: int, strategy: Strategy | None = None) -> bool:
    optimizer = torch.optim.AdamW(MODEL.parameters())
    (MODEL(torch.ones(1, 64)).sum() * 0).backward()
    optimizer.step()
    strategy = strategy or Strategy(find_device())
    checkpointer = Checkpointer(run, strategy, NamedTensors(MODEL, optimizer, strategy.device), keep=1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, free))
    try:
        checkpointer.save(1, {})
    except MachineError as error:
        assert error.code == "disk-space-missing"
        return False
    checkpointer.wait()
    return True


def test_run_that_begins_can_write_the_last_of_its_checkpoints(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    free = next(each for each in range(0, 64 << 20, 1 << 16) if not _refuses(run, monkeypatch, free=each))
    # The one that is kept is there when the second one is written.
    assert _can_save(run, monkeypatch, free=free - CHECKPOINT)
    assert free < 2 * CHECKPOINT + FINAL + (17 << 20)


def test_ranks_agree_on_the_space_that_the_main_rank_finds(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    # What another rank has written by then is no reason to end; and where the main rank ends, all do so by its reason.
    assert _can_save(run, monkeypatch, free=0, strategy=SecondRank(1 << 40))
    assert not _can_save(run, monkeypatch, free=1 << 40, strategy=SecondRank(0))


def test_checkpoints_of_a_larger_keep_are_not_space_for_the_next_one(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stand(run, *range(9))
    assert _refuses(run, monkeypatch, free=CHECKPOINT + (16 << 20) - 1, done=8)


def _stand(run: RunDir, *steps: int) -> None:
    for step in steps:
        run.checkpoint(step).mkdir()
        (run.checkpoint(step) / "tensors_rank_0.safetensors").write_bytes(bytes(CHECKPOINT))


def test_resumed_run_that_writes_no_checkpoint_any_more_needs_space_for_the_model_only(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stand(run, 8, 9)
    assert not _refuses(run, monkeypatch, free=FINAL, written=0, done=9)
    assert _refuses(run, monkeypatch, free=FINAL - 1, written=0, done=9)


def test_resumed_run_asks_for_the_checkpoints_that_are_left(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand(run, 9)
    # One is there and one is written: of the three that keep allows, there are never more than two.
    free = next(each for each in range(0, 64 << 20, 1 << 12) if not _refuses(
        run, monkeypatch, free=each, keep=2, written=1, done=9
    ))  # fmt: skip
    assert CHECKPOINT + FINAL <= free - (16 << 20) < CHECKPOINT + FINAL + (1 << 12)


def test_checkpoints_that_a_start_from_an_earlier_one_removes_do_not_stand(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stand(run, 2, 8, 9)
    # From step 2: it stands, and 8 and 9 give their space to what is written.
    assert not _refuses(run, monkeypatch, free=CHECKPOINT + (16 << 20), keep=2, written=9, done=2)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adafactor", "muon"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_size_is_that_of_the_tensors_which_are_written(optimizer: str, dtype: torch.dtype) -> None:
    """Embeddings, matrices, vectors and stacked matrices."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(97, 32)
            self.inner = torch.nn.Linear(32, 48)
            self.experts = torch.nn.Parameter(torch.ones(3, 48, 32))
            self.frozen = torch.nn.Linear(32, 32)
            self.frozen.requires_grad_(False)

    model = Model().to(dtype)
    recipe = Recipe.check({"model": {"path": "m"}, "data": {"train": "d"}, "optim": {"optimizer": optimizer}})
    made = make_optimizer(recipe.optim, model.named_parameters(), 0.01, fused=False, tables=tables_of(model))
    for each in model.parameters():
        each.grad = torch.ones_like(each) if each.requires_grad else None
    made.step()
    written = NamedTensors(model, made, find_device()).size_bytes()
    # A count of steps for each parameter is left out.
    assert written - 4 * 4 <= checkpoint_bytes(recipe, model, computed_bytes=2) <= written


def test_file_of_weights_that_memory_has_no_room_for_is_counted(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, FINAL))
    section = CheckpointSection(keep=1)
    require_space_for_run(run, section, checkpoint=CHECKPOINT, model=FINAL, written=0)
    with pytest.raises(MachineError, match="that the host's memory has no room for"):
        require_space_for_run(run, section, checkpoint=CHECKPOINT, model=FINAL, written=0, gathered=1)
