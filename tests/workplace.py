"""A directory in which the command trains a small model, on made-up rows: started as a user does, read from outside."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascendtune.core.rundir import RunDir

_EXACT = ("step", "loss", "grad_norm", "learning_rate", "batch_hash", "tokens_seen")


@dataclass(frozen=True)
class Workplace:
    path: Path
    words: tuple[str, ...] = ()
    """What every start says, beside the recipe."""
    variables: Mapping[str, str] = field(default_factory=dict)

    def start(self, name: str, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Train in the run `name`; cache and registry are the directory's own."""
        own = {
            "XDG_CACHE_HOME": str(self.path / "cache"),
            "XDG_STATE_HOME": str(self.path / "state"),
            "OMP_NUM_THREADS": "1",
        }
        argv = [sys.executable, "-m", "ascendtune", "train", "recipe.yaml", f"name={name}", *self.words, *words]
        with self._log(name, environment.get("NODE_RANK")).open("a") as log:
            env = {**os.environ, **own, **self.variables, **environment}
            return subprocess.Popen(argv, cwd=self.path, text=True, env=env, stdout=log, stderr=log)

    def said(self, name: str, node: str | None = None) -> str:
        """What the starts of `name` printed, on that node."""
        return self._log(name, node).read_text()

    def run(self, name: str) -> RunDir:
        return RunDir(self.path / "runs" / name)

    def exact(self, name: str) -> list[tuple[Any, ...]]:
        """What two trainings that are the same have in common, to the last bit."""
        return [tuple(line[key] for key in _EXACT) for line in self.run(name).read_metrics()]

    def _log(self, name: str, node: str | None) -> Path:
        return self.path / f"{name}{f'-{node}' if node else ''}.log"


def furnish(path: Path, model: Path, *, rows: int, steps: int, per_device: int, every_steps: int) -> Workplace:
    """Rows and a recipe in `path`.

    Args:
        every_steps: between checkpoints.
    """
    draw = random.Random(11)
    content = [
        {"prompt": f"What is {number} plus one?", "completion": " ".join(draw.choices(["a", "b", "c"], k=6))}
        for number in range(rows)
    ]
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    (path / "recipe.yaml").write_text(
        f"model: {{path: {model}}}\ndata: {{train: rows.jsonl, max_length: 64}}\n"
        f"optim: {{max_steps: {steps}, learning_rate: 1e-3}}\nprecision: fp32\n"
        "method: {tuner: lora, lora: {rank: 4, dropout: 0.2}}\n"
        f"batch: {{per_device: {per_device}}}\ncheckpoint: {{every_steps: {every_steps}}}\n"
        "track: {tensorboard: false}\n"
    )
    return Workplace(path)
