"""Dumps of steps of this project's loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ascendtune.machine.torch_backend.find import open_device
from ascendtune.recipe.sections import AlignSection
from ascendtune.train.dump.step_dumps import StepDumps
from ascendtune.train.strategy.base import Strategy


def gradients_of_outputs(directory: Path, scaler: torch.amp.GradScaler | None) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    dumps = StepDumps(directory, AlignSection(dump_steps=1), Strategy(open_device("cpu")), model)
    with dumps.step(1):
        loss = model(torch.ones(2, 4)).square().mean()
        dumps.loss(loss, scaler)
        (scaler.scale(loss) if scaler else loss).backward()
    lines = (directory / "step-0000001" / "rank_0.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines[1:]) if row["phase"] in ("backward", "loss")]


def test_scaled_loss_gives_the_gradients_of_the_loss(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4096)
    assert gradients_of_outputs(tmp_path / "scaled", scaler) == gradients_of_outputs(tmp_path / "plain", None)
