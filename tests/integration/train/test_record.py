"""`ascendtune align record` on scripts that know nothing of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("preloaded")

LOOP = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grad_norm_
from transformers import AutoModelForCausalLM

how, path = sys.argv[1:]
if how != "alone":
    dist.init_process_group("gloo")
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
if how == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
elif how == "fsdp":
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
draw = torch.Generator().manual_seed(1)
for step in range(3):
    ids = torch.randint(0, 512, (4, 8), generator=draw).chunk(world)[rank]
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print("loss", loss.item())
if how != "alone":
    dist.destroy_process_group()
"""

TRAINER = """
import sys
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
draw = torch.Generator().manual_seed(1)
rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 512, (12, 8), generator=draw)]
arguments = TrainingArguments(
    "out", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=3, logging_steps=1, report_to=[],
    save_strategy="steps", save_steps=2, learning_rate=1e-3, use_cpu=True, disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=rows)
trainer.train(*sys.argv[2:])
trainer.state.save_to_json("state.json")
"""

SMALL_LOOP = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())
"""

LAUNCHER = """
import subprocess, sys
sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)
"""


def record(
    directory: Path, script: str, *words: str, launcher: tuple[str, ...] = (sys.executable,), resumes: bool = False
) -> str:
    """Record `script` into `directory`/recorded; returns what it printed."""
    (directory / "script.py").write_text(script)
    option = ["--resume"] if resumes else []
    ours = [sys.executable, "-m", "ascendtune", "align", "record", "--steps", "1,3", *option, "--"]
    ended = subprocess.run(
        [*ours, *launcher, "script.py", *words],
        cwd=directory, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def metrics(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "recorded" / "metrics.jsonl").read_text().splitlines()]


def rows_of(directory: Path, rank: int = 0, step: int = 1) -> dict[tuple[Any, ...], dict[str, Any]]:
    file = directory / "recorded" / "dump" / f"step-{step:07d}" / f"rank_{rank}.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    return {(row["phase"], row["micro_batch"], row["name"], row["slot"]): row for row in rows}


@dataclass(frozen=True)
class Recorded:
    directory: Path
    printed: str


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Recorded:
    """The loop on one device. Read-only."""
    directory = tmp_path_factory.mktemp("alone")
    return Recorded(directory, record(directory, LOOP, "alone", str(tiny_model)))


def test_bare_loop_is_recorded(alone: Recorded, tiny_model: Path) -> None:
    losses = [float(line.split()[1]) for line in alone.printed.splitlines()]
    assert [each["loss"] for each in metrics(alone.directory)] == losses
    recorded = alone.directory / "recorded"
    assert sorted(each.name for each in (recorded / "dump").iterdir()) == ["step-0000001", "step-0000003"]
    facts = json.loads((recorded / "recorded.json").read_text())
    assert facts["command"] == ["script.py", "alone", str(tiny_model)] and facts["optimizer"] == "AdamW"
    assert ("forward", 0, "model.layers.1.mlp", "output") in rows_of(alone.directory)


@pytest.mark.parametrize("how", ["ddp", pytest.param("fsdp", marks=pytest.mark.soak)])
def test_two_ranks_have_the_gradients_of_one(tmp_path: Path, alone: Recorded, tiny_model: Path, how: str) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    if how == "ddp":
        # A script that starts the launcher: the ranks are its grandchildren.
        (tmp_path / "launcher.py").write_text(LAUNCHER)
        torchrun = ("launcher.py", *torchrun)
    record(tmp_path, LOOP, how, str(tiny_model), launcher=(sys.executable, *torchrun))
    expected = [each["loss"] for each in metrics(alone.directory)]
    assert [each["loss"] for each in metrics(tmp_path)] == pytest.approx(expected, rel=1e-4)
    one, two = rows_of(alone.directory), rows_of(tmp_path)
    assert set(one) == set(two)
    gradients = [key for key in one if key[0] == "gradient"]
    assert gradients
    for key in gradients:
        assert two[key]["shape"] == one[key]["shape"] and two[key]["l2"] == pytest.approx(one[key]["l2"], rel=1e-4)
    starts = [
        json.loads((each / "recorded" / "start_weights.json").read_text()) for each in (alone.directory, tmp_path)
    ]
    assert starts[0]["parameters"] == starts[1]["parameters"] and len(starts[1]["ranks"]) == 2
    assert any(key[0] == "gradient" for key in rows_of(tmp_path, rank=1)) == (how == "ddp")


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Where the Trainer was recorded, with its checkpoint. Read-only."""
    directory = tmp_path_factory.mktemp("trainer")
    record(directory, TRAINER, str(tiny_model))
    return directory


def test_trainer_is_recorded_without_a_change(trainer: Path) -> None:
    logged = [each for each in json.loads((trainer / "state.json").read_text())["log_history"] if "loss" in each]
    found = metrics(trainer)
    assert [each["loss"] for each in found] == pytest.approx([each["loss"] for each in logged], rel=1e-4)
    assert [each["grad_norm"] for each in found] == pytest.approx([each["grad_norm"] for each in logged], rel=1e-4)
    assert [each["learning_rate"] for each in found] == [each["learning_rate"] for each in logged]
    assert {key[1] for key in rows_of(trainer, step=3)} == {0, 1, None}


def test_resumed_trainer_continues_with_its_recording(tmp_path: Path, trainer: Path, tiny_model: Path) -> None:
    expected, dumped = metrics(trainer), rows_of(trainer, step=3)
    shutil.copytree(trainer, tmp_path, dirs_exist_ok=True)
    record(tmp_path, TRAINER, str(tiny_model), "out/checkpoint-2", resumes=True)
    assert metrics(tmp_path) == expected
    assert rows_of(tmp_path, step=3) == dumped
    assert json.loads((tmp_path / "recorded" / "recorded.json").read_text())["resumed_at"] == [3]


def test_program_that_a_shell_script_starts_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"{sys.executable} prepare.py\n{sys.executable} script.py\n")
    (tmp_path / "prepare.py").write_text("print('prepared')\n")
    printed = record(tmp_path, SMALL_LOOP, launcher=("sh", "run.sh"))
    losses = [float(line.split()[1]) for line in printed.splitlines() if line.startswith("loss")]
    assert [each["loss"] for each in metrics(tmp_path)] == pytest.approx(losses, rel=1e-6)


def test_command_without_a_script_and_a_used_directory_are_refused(tmp_path: Path) -> None:
    def code(*words: str) -> tuple[int, str]:
        ours = [sys.executable, "-m", "ascendtune", "align", "record", *words]
        ended = subprocess.run(ours, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        return ended.returncode, ended.stderr

    assert code("--", "ls")[0] == 2
    (tmp_path / "recorded").mkdir()
    (tmp_path / "recorded" / "recorded.json").write_text("{}")
    exit_code, said = code("--", sys.executable, "train.py")
    assert exit_code == 2 and "contains a recording" in said
