"""The host does not wait for the device within a step, so the device has work while the next is prepared."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from tests.hardware.conftest import TrainOn

    from ascendtune.machine.torch_backend.device import Device

RECIPES: dict[str, dict[str, Any]] = {
    "full": {},
    "fp16": {"precision": "fp16"},
    "packed": {"data": {"packing": True}},
    "accumulated": {"batch": {"per_device": 2, "accumulate": 2}},
    "noise": {"method": {"sft": {"neftune_alpha": 5.0}}, "data": {"packing": True}},
    "lora": {"method": {"tuner": "lora"}},
    "nf4": {"method": {"tuner": "lora"}, "model": {"quantization": "nf4"}},
    "offloaded": {"memory": {"gradient_checkpointing": True, "offload_activations": True}},
    "fsdp": {"parallel": {"strategy": "fsdp"}},
    "dpo": {"method": {"stage": "preference"}},
}


@pytest.mark.parametrize("name", RECIPES)
def test_more_steps_do_not_make_the_host_wait_more_often(
    name: str, device: Device, train_on: TrainOn, rows: Path, tmp_path: Path
) -> None:
    if not device.runs_asynchronously:
        pytest.skip(f"operations have run on {device.kind} when they return")
    recipe = {"precision": "bf16", **RECIPES[name]}
    if name == "dpo":
        recipe["data"] = {"train": str(pairs_of(rows, tmp_path / "pairs.jsonl"))}
    # What is made once in a process is made before.
    found = [
        waits(train_on, device, f"{name}-{steps}", {"optim": {"max_steps": steps}, **recipe}) for steps in (1, 2, 6)
    ]
    assert not found[2] - found[1], found[2] - found[1]


def waits(train_on: TrainOn, device: Device, name: str, recipe: dict[str, Any]) -> Counter[str]:
    """What torch says of each wait in a training."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            train_on(device, name, **recipe)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    texts = [f"{each.filename}:{each.lineno}: {each.message}" for each in noted]
    return Counter(each for each in texts if "called a synchronizing CUDA operation" in each)


def pairs_of(rows: Path, path: Path) -> Path:
    """Each completion beside the one of the row before."""
    read = [json.loads(line) for line in rows.read_text().splitlines()]
    pairs = [
        {"prompt": row["prompt"], "chosen": row["completion"], "rejected": other["completion"]}
        for row, other in zip(read, read[-1:] + read[:-1], strict=True)
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in pairs))
    return path
