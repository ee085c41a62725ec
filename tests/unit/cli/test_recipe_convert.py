"""A LLaMA-Factory recipe at the command line: converted, checked, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascendtune.recipe.recipe import Recipe

LLAMAFACTORY = """\
model_name_or_path: {model}
stage: sft
do_train: true
finetuning_type: lora
dataset: rows
template: chatml
output_dir: saves/sft
plot_loss: true
bf16: true
"""


@pytest.fixture
def ascendtune(in_process: Any) -> Any:
    return in_process


@pytest.fixture
def recipe(tiny_model: Path, tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json"}}))
    (tmp_path / "data" / "rows.json").write_text(json.dumps([{"instruction": "2+3?", "input": "", "output": "5"}]))
    path = tmp_path / "recipe.yaml"
    path.write_text(LLAMAFACTORY.format(model=tiny_model))
    return path


def test_converted_recipe_equals_the_original(ascendtune: Any, recipe: Path, tmp_path: Path, monkeypatch: Any) -> None:
    made = ascendtune("recipe", "convert", recipe, "optim.max_steps=3", "-o", "ours.yaml")
    assert made.returncode == 0, made.stderr
    text = (tmp_path / "ours.yaml").read_text()
    assert ascendtune("recipe", "convert", recipe, "optim.max_steps=3").stdout == text
    assert text.startswith(f"# From {recipe}.\n# - ") and "plot_loss: no effect" in text
    monkeypatch.chdir(tmp_path)
    ours = Recipe.load("ours.yaml")
    assert ours.model_dump() == Recipe.load(recipe, ["optim.max_steps=3"]).model_dump() and not ours.notes
    again = ascendtune("recipe", "convert", recipe, "-o", "ours.yaml")
    assert again.returncode == 2 and "code: path-exists" in again.stderr
    assert "code: already-native-recipe" in ascendtune("recipe", "convert", "ours.yaml").stderr


def test_recipe_check_lists_keys_without_effect(ascendtune: Any, recipe: Path) -> None:
    checked = ascendtune("recipe", "check", recipe)
    assert checked.returncode == 0, checked.stderr
    assert "warning: plot_loss: no effect: a picture" in checked.stderr


def test_a_recipe_for_merging_is_answered_with_the_command(ascendtune: Any, recipe: Path) -> None:
    without_training = recipe.read_text().replace("do_train: true\n", "")
    recipe.write_text(without_training + "adapter_name_or_path: saves/sft\nexport_dir: merged\n")
    refused = ascendtune("train", recipe)
    assert refused.returncode == 2
    assert "do: ascendtune merge saves/sft --onto " in refused.stderr and "where: " in refused.stderr
