"""Decisions that all ranks of a resumed run make alike, though their hosts see the run directory differently."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ascendtune.core.rundir import RunDir
from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.train.resume import resume
from ascendtune.train.strategy.base import Strategy


class SecondRank(Strategy):
    """Rank 1 of two; the main rank answers `of_main` to everything."""

    def __init__(self, of_main: str) -> None:
        super().__init__(CpuDevice())
        self.rank, self.world_size, self._of_main = 1, 2, of_main

    def gather(self, text: str) -> list[str]:
        return [self._of_main, text]


@pytest.mark.parametrize("is_there", [True, False])
def test_main_rank_decides_whether_the_best_checkpoint_exists(is_there: bool, tmp_path: Path) -> None:
    """Otherwise an evaluation would be the best so far on one rank only, which then waits for the others to save."""
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    if not is_there:
        run.checkpoint(2).mkdir()
    state = {"step": 3, "best_step": 2, "best_loss": 1.0}
    recipe: Any = SimpleNamespace(checkpoint=SimpleNamespace(best=True), eval=SimpleNamespace(early_stop=None))
    checkpointer: Any = SimpleNamespace(load=lambda source: state)
    counters = resume(run, run.checkpoint(3), recipe, SecondRank(str(is_there)), checkpointer, 9, "")
    assert counters.best_step == (2 if is_there else None)
