"""Configurations of axolotl, TRL and ms-swift are answered with commands that train the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.recipe import Recipe

AXOLOTL = {
    "base_model": "m",
    "datasets": [{"path": "data/my rows.json", "type": "alpaca"}, {"path": "org/rows"}],
    "sequence_len": 256,
    "adapter": "lora",
    "lora_r": 8,
    "micro_batch_size": 2,
    "learning_rate": "2e-4",
    "lr_scheduler": "cosine",
    "optimizer": "adamw_torch",
    "bf16": True,
}
TRL = {"model_name_or_path": "m", "dataset_name": "d", "per_device_train_batch_size": 2, "beta": 0.2, "use_peft": True}
SWIFT = {"model": "m", "dataset": ["d#500"], "train_type": "lora", "rlhf_type": "simpo", "max_length": 64}


@pytest.mark.parametrize(
    ("values", "tool", "first", "then"),
    [
        (
            AXOLOTL,
            "axolotl",
            "ascendtune init --model m --data 'data/my rows.json' --data org/rows --tuner lora",
            "ascendtune train recipe.yaml data.max_length=256 method.lora.rank=8 batch.per_device=2 "
            "optim.learning_rate=0.0002 optim.scheduler=cosine",
        ),
        (
            TRL,
            "TRL",
            "ascendtune init --model m --data d --stage preference --tuner lora",
            "ascendtune train recipe.yaml batch.per_device=2 method.preference.beta=0.2",
        ),
        (
            SWIFT,
            "ms-swift",
            "ascendtune init --model m --data d --stage preference --tuner lora",
            "ascendtune train recipe.yaml method.preference.loss=simpo data.max_length=64",
        ),
    ],
    ids=["axolotl", "TRL", "ms-swift"],
)
def test_answer_holds_the_commands(tmp_path: Path, values: dict[str, Any], tool: str, first: str, then: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    with pytest.raises(RecipeError, match=tool) as caught:
        Recipe.load(file)
    assert caught.value.code == "recipe-of-another-tool"
    assert caught.value.remedy == f"{first}, then {then}"
    # What the second command sets is valid.
    native = tmp_path / "recipe.yaml"
    native.write_text(yaml.safe_dump({"model": {"path": "m"}, "data": {"train": "d"}}))
    Recipe.load(native, [word for word in then.split() if "=" in word and not word.startswith("method.lora")])
