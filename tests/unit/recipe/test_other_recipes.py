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
            {"base_model": "m", "datasets": [{"path": "d"}], "rl": "dpo", "rl_beta": 0.2, "output_dir": "./out"},
            "axolotl",
            "ascendtune init --model m --data d --stage preference",
            "ascendtune train recipe.yaml method.preference.beta=0.2 run_dir=./out",
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
    ids=["axolotl", "axolotl DPO", "TRL", "ms-swift"],
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


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("rows.jsonl", '{"prompt": "a"}\n{"prompt": "b"}\n', "ascendtune init --model MODEL --data {}, then"),
        ("rows.csv.gz", "\x1f", "ascendtune init --model MODEL --data {}, then"),
        ("rows.json", '\n [{"a": 1}]', "ascendtune init --model MODEL --data {}, then"),
        ("model/config.json", "{}", "ascendtune init --model {} --data DATA, then"),
        ("train.py", "print('a')", "ascendtune launch -- python {}"),
    ],
)
def test_file_that_is_no_recipe_is_answered_with_the_command(
    tmp_path: Path, name: str, content: str, remedy: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    given = tmp_path / name.partition("/")[0]
    with pytest.raises(RecipeError) as caught:
        Recipe.load(given)
    assert caught.value.code == "not-a-recipe" and remedy.format(given) in caught.value.remedy


def test_model_of_a_hub_and_data_are_answered_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.json").write_text("[]")
    with pytest.raises(RecipeError) as caught:
        Recipe.load("Qwen/Qwen2.5-0.5B", ["own.json"])
    assert caught.value.code == "path-missing"
    assert "ascendtune init --model Qwen/Qwen2.5-0.5B --data own.json" in caught.value.remedy
    Path("Qwen").mkdir()
    with pytest.raises(RecipeError) as caught:
        Recipe.load("Qwen/recipe", ["own.json"])
    assert "init --model" not in caught.value.remedy


@pytest.mark.parametrize("given", ["qa", "runs/qa"])
def test_run_is_answered_with_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/qa").mkdir(parents=True)
    Path("runs/qa/run.json").write_text("{}")
    with pytest.raises(RecipeError) as caught:
        Recipe.load(given)
    assert caught.value.code == "not-a-recipe" and caught.value.remedy.endswith("runs/qa/recipe.yaml")


def test_recipe_in_json_is_one(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"model": {"path": "m"}, "data": {"train": "d"}}')
    assert Recipe.load(tmp_path / "r.json").model.path == "m"
