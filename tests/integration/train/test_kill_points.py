"""Whatever ends a run at whichever operation on files: the next start goes on bit by bit, and nothing is left over."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.integration.train.kill_points import Fault, Kind, forked, train

from ascendtune.core.claim import Claim
from ascendtune.core.rundir import RunDir
from ascendtune.merge.merge import merge
from ascendtune.recipe.recipe import Recipe

EXACT = ("step", "loss", "grad_norm", "learning_rate", "batch_hash", "tokens_seen")
STRATEGIES: dict[str, tuple[int, dict[str, Any]]] = {
    "single": (1, {}),
    "ddp": (2, {"parallel": {"strategy": "ddp"}, "batch": {"per_device": 2}}),
    "fsdp": (2, {"parallel": {"strategy": "fsdp"}, "batch": {"per_device": 2}}),
    "zero-2": (1, {"parallel": {"strategy": "deepspeed", "deepspeed": {"stage": 2}}}),
    "zero-3": (1, {"parallel": {"strategy": "deepspeed", "deepspeed": {"stage": 3}}}),
}
SAMPLE: list[tuple[str, int, Kind, int]] = [
    ("single", 0, "kill", 6),
    ("single", 0, "stop", 3),
    ("single", 0, "full", 3),
    ("ddp", 0, "kill", 2),
    ("ddp", 1, "kill", 1),
    ("fsdp", 0, "kill", 2),
    ("fsdp", 1, "kill", 1),
]
"""Strategy, rank, fault, how many points of all."""
ALL: list[tuple[str, int, Kind]] = [
    *(("single", 0, kind) for kind in ("kill", "stop", "full")),
    *((strategy, rank, "kill") for strategy in ("ddp", "fsdp") for rank in (0, 1)),
    *((strategy, rank, "full") for strategy in ("ddp", "fsdp") for rank in (0,)),
]


class Bench:
    """Runs of one recipe, each in a directory of its own."""

    def __init__(self, directory: Path, recipe: Callable[..., Recipe], strategy: str) -> None:
        self.directory = directory
        self.ranks, changes = STRATEGIES[strategy]
        self._make = recipe
        self._changes: dict[str, Any] = {
            "optim": {"max_steps": 5, "learning_rate": 0.01},
            "method": {"tuner": "lora", "lora": {"rank": 4, "dropout": 0.3}},
            "checkpoint": {"every_steps": 2, "keep": 1, "resume": "auto"},
            "name": "run",
            **changes,
        }
        self.whole = self.directory / "whole/run"

    def start(self, name: str, fault: Fault) -> int:
        recipe = self._make(**{**self._changes, "run_dir": str(self.directory / name / "{name}")})
        return train(recipe, self.ranks, fault, self.directory / "count")

    def operations(self, rank: int) -> int:
        """How many there are in a whole run, which is made by this and kept for comparison."""
        shutil.rmtree(self.whole.parent, ignore_errors=True)
        assert self.start("whole", Fault("kill", 0, rank)) == 0, self.said()
        return int((self.directory / "count").read_text())

    def said(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.directory.glob("*.log")))

    def check(self, fault: Fault) -> None:
        """Let the fault happen, and start again as often as it takes."""
        code = self.start("broken", fault)
        run = RunDir(self.directory / "broken/run")
        for step in run.checkpoint_steps():
            _require_whole(run.checkpoint(step))
        if run.model.exists():
            _require_same(run.model, self.whole / "model", "exported")
        is_over = run.run_json.exists() and run.read()["state"] == "finished"
        assert is_over or code != 0, f"{fault} ended with {code}"
        if not is_over:
            assert self.start("broken", Fault("kill", 0)) == 0, f"{fault}: {self.said()}"
        runs = sorted(run.path.parent.iterdir())
        assert [path.name for path in runs] in (["run"], ["run", "run-2"])
        # Metrics without a checkpoint are kept, and the next start takes the next name.
        run = RunDir(runs[-1])
        assert run.read()["state"] == "finished"
        curves = [[[each[key] for key in EXACT] for each in RunDir(path).read_metrics()] for path in (run, self.whole)]
        assert curves[0] == curves[1], fault
        _require_same(run.model, self.whole / "model", str(fault))
        patterns = (".*.[0-9]*", ".model.*", "checkpoints/.step_*")
        left = [str(path) for each in runs for pattern in patterns for path in each.glob(pattern)]
        assert is_over or not left, (fault, left)
        Claim.take(run.path).release()
        shutil.rmtree(run.path.parent)


def _require_whole(checkpoint: Path) -> None:
    for name, digest in json.loads((checkpoint / "digests.json").read_text()).items():
        assert hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() == digest, name


def _require_same(model: Path, whole: Path, why: str) -> None:
    assert {path.name for path in model.iterdir()} == {path.name for path in whole.iterdir()}, why
    (file,) = model.glob("*.safetensors")
    one, other = load_file(file), load_file(whole / file.name)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one), why


@pytest.fixture
def bench(tmp_path: Path, recipe: Callable[..., Recipe]) -> Callable[[str], Bench]:
    def make(strategy: str) -> Bench:
        return Bench(tmp_path, recipe, strategy)

    return make


def spread(operations: int, points: int) -> list[int]:
    """Some of the numbers from 1 to `operations`, evenly."""
    return [1 + (2 * number + 1) * operations // (2 * points) for number in range(points)]


@pytest.mark.parametrize(("strategy", "rank", "kind", "points"), SAMPLE)
def test_fault_at_a_file_operation_loses_nothing(
    bench: Callable[[str], Bench], strategy: str, rank: int, kind: Kind, points: int
) -> None:
    runs = bench(strategy)
    for at in spread(runs.operations(rank), points):
        runs.check(Fault(kind, at, rank))


@pytest.mark.soak
@pytest.mark.parametrize(("strategy", "rank", "kind"), ALL)
def test_fault_at_every_file_operation_loses_nothing(
    bench: Callable[[str], Bench], strategy: str, rank: int, kind: Kind
) -> None:
    runs = bench(strategy)
    for at in range(1, runs.operations(rank) + 1):
        runs.check(Fault(kind, at, rank))


@pytest.mark.parametrize("kind", ["kill", "full"])
def test_fault_at_every_file_operation_of_a_merge_leaves_it_absent_or_whole(
    bench: Callable[[str], Bench], tmp_path: Path, kind: Kind
) -> None:
    runs, target = bench("single"), tmp_path / "merged" / "model"
    runs.operations(0)

    def write() -> None:
        merge([str(runs.whole)], target, verify=False)

    def digests() -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in target.iterdir()}

    assert forked(write, target.parent, Fault("kill", 0), tmp_path / "count") == 0
    operations, whole = int((tmp_path / "count").read_text()), digests()
    assert operations > 10
    for at in range(1, operations + 1):
        shutil.rmtree(target.parent)
        forked(write, target.parent, Fault(kind, at), tmp_path / "count")
        if target.exists():
            assert digests() == whole, at
            continue
        assert forked(write, target.parent, Fault("kill", 0), tmp_path / "count") == 0, runs.said()
        assert digests() == whole and [path.name for path in target.parent.iterdir()] == [target.name], at
