"""A kill of a DeepSpeed run at an operation on files loses nothing, and its files run no code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.test_foreign_run import Attack, sign

from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from kills.points import Fault, Kind
from kills.runs import Bench, spread

pytest.importorskip("deepspeed", reason="DeepSpeed is shown to a process of its own (make deepspeed-tests)")


@pytest.fixture
def bench(tmp_path: Path, recipe: Callable[..., Recipe]) -> Callable[[str], Bench]:
    return lambda strategy: Bench(tmp_path, recipe, strategy)


@pytest.mark.parametrize("strategy", ["zero-2", "zero-3"])
def test_fault_at_a_file_operation_loses_nothing(bench: Callable[[str], Bench], strategy: str) -> None:
    runs = bench(strategy)
    for at in spread(len(runs.operations(0)), 2):
        runs.check(Fault("kill", at))


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["kill", "full"])
@pytest.mark.parametrize("strategy", ["zero-2", "zero-3"])
def test_fault_at_every_file_operation_loses_nothing(bench: Callable[[str], Bench], strategy: str, kind: Kind) -> None:
    runs = bench(strategy)
    for at in range(1, len(runs.operations(0)) + 1):
        runs.check(Fault(kind, at))


@pytest.mark.parametrize("strategy", ["zero-2", "zero-3"])
def test_checkpoint_with_a_pickle_runs_no_code(bench: Callable[[str], Bench], tmp_path: Path, strategy: str) -> None:
    marker, runs = tmp_path / "code-ran", bench(strategy)
    runs.operations(0)
    run = RunDir(runs.whole)
    (step,) = run.checkpoint_steps()
    run.update(state="stopped")
    for file in sorted((run.checkpoint(step) / "zero").glob("*.pt")):
        whole = file.read_bytes()
        content: Any = torch.load(file, weights_only=False)
        torch.save({**content, "attack": Attack(marker)}, file)
        sign(run.checkpoint(step))
        assert runs.start("whole", Fault("kill", 0)) == 77
        assert "the checkpoint is damaged: DeepSpeed's files contain more" in runs.said() and not marker.exists()
        file.write_bytes(whole)
    sign(run.checkpoint(step))
    assert runs.start("whole", Fault("kill", 0)) == 0, runs.said()
