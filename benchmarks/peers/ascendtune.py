"""Ours: the command as a user gives it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from measure import ASCENDTUNE, Measured, Step, run
from peers.work import Work, write_yaml


def train(
    work: Work, scratch: Path, *, cache: Path, overrides: dict[str, object] | None = None, prepare: bool = False,
    words: Sequence[str] = (),
) -> Measured:  # fmt: skip
    """One run from the recipe to the exported model, or to the prepared data. metrics.jsonl tells the tokens.

    Args:
        words: behind those of the recipe.
    """
    lora = {"rank": 8, "alpha": 16}
    recipe = {
        "model": {"path": str(work.inputs.model)},
        "data": {
            "train": {"path": str(work.inputs.alpaca), "format": "alpaca"},
            "template": "chatml",
            "max_length": work.max_length,
            "packing": work.packing,
        },
        "method": {"tuner": work.tuner, **({"lora": lora} if work.tuner == "lora" else {})},
        "optim": {"learning_rate": 1e-4, "max_steps": work.steps},
        "batch": {"per_device": work.batch},
        "precision": work.precision,
    }
    path = write_yaml(scratch / "recipe.yaml", recipe)
    changes = [f"{key}={value}" for key, value in (overrides or {}).items()] + ["--prepare"] * prepare
    measured = run([ASCENDTUNE, "train", path, *changes, *words], directory=scratch, env={"XDG_CACHE_HOME": str(cache)})
    lines = (scratch / "runs" / "run" / "metrics.jsonl").read_text().splitlines() if measured.steps else []
    seen = {record["step"]: record["tokens_seen"] for record in map(json.loads, lines)}
    steps = [Step(s.cpu_seconds, s.seconds, seen.get(number, 0)) for number, s in enumerate(measured.steps, start=1)]
    return Measured(**{**measured.__dict__, "steps": steps})
