"""The same training on the CPU and on a CUDA device is aligned: the honest pair that needs hardware."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.training_record import read_training_record

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine")

WORDS = ["atom", "balanced", "capital", "clips", "diet", "friends", "healthy", "Paris", "sleep", "tips"]


def compared(tiny_model: Path, directory: Path, precision: str) -> TrainingComparison:
    draw = random.Random(0)
    rows = [[" ".join(draw.choices(WORDS, k=draw.randint(2, 6))) for _ in range(2)] for _ in range(24)]
    data = directory / "rows.csv"
    data.write_text("prompt,completion\n" + "".join(f"{one},{other}\n" for one, other in rows))
    for name, hidden in (("cpu", {"CUDA_VISIBLE_DEVICES": ""}), ("cuda", {})):
        recipe = {
            "name": name,
            "run_dir": str(directory / name),
            "model": {"path": str(tiny_model)},
            "data": {"train": [{"path": str(data)}], "packing": False},
            "method": {"stage": "sft", "tuner": "full"},
            "optim": {"max_steps": 5, "learning_rate": 1e-3, "scheduler": "constant"},
            "batch": {"per_device": 4},
            "precision": precision,
            "kernel": "off",
            "align": {"dump_steps": "1-3"},
        }
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
        ended = subprocess.run(
            [sys.executable, "-m", "ascendtune", "train", str(directory / f"{name}.yaml"), "--devices", "1"],
            env={**os.environ, **hidden}, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
    one, other = read_training_record(directory / "cpu"), read_training_record(directory / "cuda")
    return compare_trainings(one, other, expected_noise(one, other))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_cuda_is_aligned_with_the_cpu(tiny_model: Path, tmp_path: Path, precision: str) -> None:
    found = compared(tiny_model, tmp_path, precision)
    assert found.divergence is None, found.divergence
    assert found.dumps.steps == (1, 2, 3) and {"start", "backward", "update"} <= found.dumps.agreeing
