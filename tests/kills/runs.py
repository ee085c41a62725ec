"""Runs and merges that a fault ends, and what must be so after the next start."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from ascendtune.core.claim import Claim
from ascendtune.core.rundir import RunDir
from ascendtune.merge.merge import merge
from ascendtune.recipe.recipe import Recipe
from kills.points import Fault, forked, seen_operations, train

EXACT = ("step", "loss", "grad_norm", "learning_rate", "batch_hash", "tokens_seen")
STRATEGIES: dict[str, tuple[int, dict[str, Any]]] = {
    "single": (1, {}),
    "ddp": (2, {"parallel": {"strategy": "ddp"}, "batch": {"per_device": 2}}),
    "fsdp": (2, {"parallel": {"strategy": "fsdp"}, "batch": {"per_device": 2}}),
    "zero-2": (1, {"parallel": {"strategy": "deepspeed", "deepspeed": {"stage": 2}}}),
    "zero-3": (1, {"parallel": {"strategy": "deepspeed", "deepspeed": {"stage": 3}}}),
    "zero-2 × 2": (2, {"parallel": {"strategy": "deepspeed", "deepspeed": {"stage": 2}}, "batch": {"per_device": 2}}),
}


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
        self._first_with_checkpoint: int | None = None
        """The earliest operation of rank 0 at which a kill has left a checkpoint."""

    def start(self, name: str, fault: Fault) -> int:
        recipe = self._make(**{**self._changes, "run_dir": str(self.directory / name / "{name}")})
        return train(recipe, self.ranks, fault, self.directory / "count")

    def operations(self, rank: int) -> list[str]:
        """Those of a whole run, which is made by this and kept for comparison."""
        shutil.rmtree(self.whole.parent, ignore_errors=True)
        self._first_with_checkpoint = None
        assert self.start("whole", Fault("kill", 0, rank)) == 0, self.said()
        return seen_operations(self.directory / "count")

    def said(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.directory.glob("*.log")))

    def check(self, fault: Fault) -> bool:
        """Let the fault happen, and start again if the run is not over. Returns whether the fault ended a process."""
        code = self.start("broken", fault)
        run = RunDir(self.directory / "broken/run")
        steps = run.checkpoint_steps()
        for step in steps:
            _require_whole(run.checkpoint(step))
        if fault.kind == "kill" and fault.rank == 0:
            self._require_not_lost(fault.at, steps, code)
        if run.model.exists():
            _require_same(run.model, self.whole / "model", "exported")
        is_over = run.run_json.exists() and run.read()["state"] == "finished"
        assert is_over or code != 0, f"{fault} ended with {code}"
        if not is_over:
            assert self.start("broken", Fault("kill", 0)) == 0, f"{fault}: {self.said()}"
        if steps and not is_over:
            assert (self.directory / "resumed").read_text() == str(run.checkpoint(max(steps))), fault
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
        self.clear()
        return code != 0

    def clear(self) -> None:
        shutil.rmtree(self.directory / "broken", ignore_errors=True)

    def _require_not_lost(self, at: int, steps: list[int], code: int) -> None:
        """A later kill leaves a checkpoint, too."""
        if steps and (self._first_with_checkpoint is None or at < self._first_with_checkpoint):
            self._first_with_checkpoint = at
        is_expected = self._first_with_checkpoint is not None and at >= self._first_with_checkpoint
        assert steps or not is_expected, f"none left at {at}, exit code {code}: {self.said()[-3000:]}"


def _require_whole(checkpoint: Path) -> None:
    for name, digest in json.loads((checkpoint / "digests.json").read_text()).items():
        assert hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() == digest, name


def _require_same(model: Path, whole: Path, why: str) -> None:
    assert {path.name for path in model.iterdir()} == {path.name for path in whole.iterdir()}, why
    (file,) = model.glob("*.safetensors")
    one, other = load_file(file), load_file(whole / file.name)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one), why


class Merged:
    """A run's adapter merged into its base model, again and again."""

    def __init__(self, run: Path, target: Path, count: Path) -> None:
        self._run, self._target, self._count = run, target, count
        self._whole: dict[str, str] = {}

    def operations(self) -> list[str]:
        """Those of a whole merge, with which the others are compared."""
        assert self._start(Fault("kill", 0)) == 0, self.said()
        self._whole = self._digests()
        return seen_operations(self._count)

    def check(self, fault: Fault) -> bool:
        """Let the fault happen, and merge again if nothing was made. Returns whether it ended the merge."""
        self.clear()
        code = self._start(fault)
        if not self._target.exists():
            assert code != 0, fault
            assert self._start(Fault("kill", 0)) == 0, self.said()
            left = [path.name for path in self._target.parent.iterdir()]
            assert left == [self._target.name], (fault, left)
        assert self._digests() == self._whole, fault
        return code != 0

    def clear(self) -> None:
        shutil.rmtree(self._target.parent, ignore_errors=True)

    def said(self) -> str:
        return self._count.with_suffix(".log").read_text()

    def _start(self, fault: Fault) -> int:
        def write() -> None:
            merge([str(self._run)], self._target, verify=False)

        return forked(write, self._target.parent, fault, self._count)

    def _digests(self) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self._target.iterdir()}


def spread(operations: int, points: int) -> list[int]:
    """Some of the numbers from 1 to `operations`, evenly."""
    return [1 + (2 * number + 1) * operations // (2 * points) for number in range(points)]
