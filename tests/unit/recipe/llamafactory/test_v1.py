"""Recipes of LLaMA-Factory's v1: translations of keys, and refusals."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ascendtune.core.errors import RecipeError
from ascendtune.data.conversation import BadRow, Conversation, RawRow
from ascendtune.data.format.choose import choose_format
from ascendtune.data.spec import DatasetSpec
from ascendtune.recipe.llamafactory.v1_keys import IGNORED, PLUGINS, TRANSLATED, UNSUPPORTED_KEYS
from ascendtune.recipe.recipe import Recipe

LIST = {
    "identity": {"path": "identity.json", "source": "local", "converter": "alpaca"},
    "shared": {"path": "rows.jsonl", "source": "local", "converter": "sharegpt", "size": 500, "weight": 2.0},
}
PAIRS = {"pairs": {"path": "somebody/pairs", "split": "train_prefs", "converter": "pair"}}
V1 = {
    "model": "Qwen/Qwen3-0.6B",
    "model_class": "llm",
    "train_dataset": "list.yaml",
    "output_dir": "./outputs/test",
    "micro_batch_size": 2,
    "cutoff_len": 1024,
    "learning_rate": 2e-5,
    "max_steps": 10,
}

Translate = Callable[..., Recipe]


@pytest.fixture
def translate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Translate:
    """`translate({"bf16": False}, listed=PAIRS)`: the v1 recipe with these keys (None removes one), translated."""
    monkeypatch.chdir(tmp_path)

    def make(changes: dict[str, Any] | None = None, *, listed: Any = LIST, words: tuple[str, ...] = ()) -> Recipe:
        Path("list.yaml").write_text(yaml.safe_dump(listed, sort_keys=False))
        values = {key: value for key, value in {**V1, **(changes or {})}.items() if value is not None}
        Path("v1.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
        return Recipe.load("v1.yaml", list(words))

    return make


def test_a_full_fine_tuning_gets_v1s_defaults(translate: Translate) -> None:
    recipe = translate()
    assert (recipe.method.stage, recipe.method.tuner) == ("sft", "full")
    assert (recipe.optim.scheduler, recipe.optim.weight_decay, recipe.optim.max_steps) == ("constant", 0.01, 10)
    assert (recipe.learning_rate, recipe.batch.per_device, recipe.data.max_length) == (2e-5, 2, 1024)
    assert (recipe.precision, recipe.memory.gradient_checkpointing) == ("bf16", True)
    assert (recipe.name, recipe.run_dir) == ("test", "outputs/{name}")
    first, second = recipe.data.train
    assert (first.path, first.format, first.limit) == ("identity.json", "alpaca", None)
    assert (second.path, second.format, second.limit, second.weight) == ("rows.jsonl", "sharegpt", 500, 2.0)


def test_epochs_count_where_max_steps_is_not_set(translate: Translate) -> None:
    assert translate({"max_steps": None}).optim.epochs == 3


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"name": "lora"}, {"rank": 8, "alpha": 16, "dropout": 0.05, "target": "all-linear"}),
        (
            {"name": "lora", "r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "target_modules": ["q_proj"]},
            {"rank": 16, "alpha": 32, "dropout": 0.0, "target": ["q_proj"]},
        ),
        ({"name": "lora", "adapter_name_or_path": "saves/a"}, {"start_from": ["saves/a"]}),
    ],
)
def test_lora_is_translated(config: dict[str, Any], expected: dict[str, Any], translate: Translate) -> None:
    lora = translate({"peft_config": config}).method.lora
    assert {key: getattr(lora, key) for key in expected} == expected


@pytest.mark.parametrize(("layers", "first", "last"), [(3, 0, 3), (-2, 2, 0)])
def test_freeze_is_translated(layers: int, first: int, last: int, translate: Translate) -> None:
    config = {"name": "freeze", "freeze_trainable_layers": layers, "freeze_trainable_modules": "mlp"}
    freeze = translate({"peft_config": config}).method.freeze
    assert (freeze.first_layers, freeze.last_layers, freeze.modules) == (first, last, ["mlp"])


def test_pairs_make_it_a_preference_training(translate: Translate) -> None:
    recipe = translate({"pref_beta": 0.2}, listed=PAIRS)
    assert (recipe.method.stage, recipe.method.preference.beta) == ("preference", 0.2)
    assert (recipe.data.train[0].path, recipe.data.train[0].split) == ("somebody/pairs", "train_prefs")
    assert any("method.stage=reward" in note for note in recipe.notes)


@pytest.mark.parametrize(
    ("strategy", "packing"),
    [("normal", False), ("padding_free", False), ("dynamic_batching", True), ("dynamic_padding_free", True)],
)
def test_dynamic_batches_become_packing(strategy: str, packing: bool, translate: Translate) -> None:
    assert translate({"batching_strategy": strategy}).data.packing is packing


def test_distribution_becomes_a_strategy(translate: Translate) -> None:
    sharded = translate({"dist_config": {"name": "fsdp2", "dcp_path": None, "offload_params": True}}).parallel
    assert (sharded.strategy, sharded.fsdp.offload) == ("fsdp", True)
    config = {"name": "deepspeed", "config_file": "z3.json"}
    zero = translate({"dist_config": config}).parallel
    assert (zero.strategy, zero.deepspeed.config) == ("deepspeed", "z3.json")


def test_muon_is_translated(translate: Translate) -> None:
    config = {"name": "muon", "wd": 0.2, "momentum": 0.9, "nesterov": True, "ns_steps": 5, "adamw_betas": [0.8, 0.9]}
    optim = translate({"optim_config": config}).optim
    assert (optim.optimizer, optim.weight_decay, optim.muon_momentum) == ("muon", 0.2, 0.9)
    assert (optim.beta1, optim.beta2, optim.learning_rate) == (0.8, 0.9, 2e-5)
    defaults = translate({"optim_config": {"name": "muon"}}).optim
    assert (defaults.weight_decay, defaults.beta2) == (0.1, 0.95)


def test_a_template_is_translated_and_an_unknown_one_refused(translate: Translate) -> None:
    assert translate().data.template == "auto"
    assert translate({"template": "smollm"}).data.template == "chatml"
    with pytest.raises(RecipeError) as caught:
        translate({"template": "qwen2_vl"})
    assert caught.value.code == "not-in-this-version"


@pytest.mark.parametrize(
    ("changes", "code", "line"),
    [
        ({"quant_config": {"name": "bnb", "quantization_bit": 8}}, "not-in-this-version", 11),
        ({"quant_config": {"name": "bnb", "quantization_type": "fp4"}}, "not-in-this-version", 11),
        ({"quant_config": {"name": "gptq"}}, "invalid-value", 10),
        ({"cp_size": 2}, "not-in-this-version", 9),
        ({"dist_config": {"name": "fsdpturbo", "ep_size": 16}}, "invalid-value", 10),
        ({"dist_config": {"name": "deepspeed"}}, "recipe-key-missing", 10),
        ({"peft_config": {"r": 8}}, "recipe-key-missing", 9),
        ({"peft_config": {"name": "freeze", "r": 8}}, "conflicting-keys", 11),
        ({"peft_config": {"name": "lora", "rank": 8}}, "unknown-recipe-key", 11),
        ({"model_class": "cls"}, "not-in-this-version", 2),
        ({"global_batch_size": 16}, "not-in-this-version", 9),
        ({"lr_scheduler_config": {"name": "cosine"}}, "not-in-this-version", 10),
        ({"optim_config": {"name": "muon", "ns_steps": 6}}, "not-in-this-version", 11),
        ({"optim_config": {"adamw_betas": [0.9], "name": "muon"}}, "invalid-value", 10),
        ({"optim_config": {"name": "adam"}}, "invalid-value", 10),
        ({"train_dataset": "none.yaml"}, "path-missing", 3),
    ],
)
def test_an_unsupported_key_is_refused_with_its_line(
    changes: dict[str, Any], code: str, line: int, translate: Translate
) -> None:
    with pytest.raises(RecipeError) as caught:
        translate(changes)
    assert (caught.value.code, str(caught.value.where)) == (code, f"v1.yaml:{line}")


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"source": "local"}, "recipe-key-missing"),
        ({"path": "a", "converter": "other"}, "not-in-this-version"),
        ({"path": "a", "converter": ["alpaca"]}, "not-in-this-version"),
        ({"path": "a", "streaming": True}, "not-in-this-version"),
        ({"path": "a", "subset": "en"}, "not-in-this-version"),
    ],
)
def test_an_unsupported_data_set_is_refused(entry: dict[str, Any], code: str, translate: Translate) -> None:
    with pytest.raises(RecipeError) as caught:
        translate(listed={"one": entry})
    assert (caught.value.code, caught.value.where) == (code, "list.yaml:1")


def test_pairs_and_conversations_together_are_refused(translate: Translate) -> None:
    with pytest.raises(RecipeError) as caught:
        translate(listed={**LIST, **PAIRS})
    assert caught.value.code == "conflicting-keys"


def test_a_recipe_that_merges_names_the_command(translate: Translate) -> None:
    config = {"name": "lora", "adapter_name_or_path": "outputs/a", "export_dir": "my models/out"}
    with pytest.raises(RecipeError) as caught:
        translate({"train_dataset": None, "peft_config": config})
    assert caught.value.code == "not-a-training-recipe"
    assert caught.value.remedy == "ascendtune merge outputs/a --onto Qwen/Qwen3-0.6B --to 'my models/out'"


def test_the_command_line_takes_keys_of_both(translate: Translate) -> None:
    recipe = translate({"peft_config": {"name": "lora"}}, words=("peft_config.r=4", "max_steps=3", "seed=5"))
    assert (recipe.method.lora.rank, recipe.optim.max_steps, recipe.seed) == (4, 3, 5)
    assert translate(words=("optim.max_steps=7",)).optim.max_steps == 7


def test_every_key_of_the_examples_is_in_one_table(shared: Path) -> None:
    with (shared / "knowledge" / "llamafactory-keys.tsv").open(encoding="utf-8") as file:
        rows = [row["key"] for row in csv.DictReader(file, delimiter="\t") if row["schema"] == "v1"]
    assert len(rows) > 15
    for key in rows:
        assert key in PLUGINS or sum(key in table for table in (TRANSLATED, IGNORED, UNSUPPORTED_KEYS)) == 1, key


@pytest.mark.parametrize(
    ("name", "task", "columns"),
    [
        ("v1_sft_demo.jsonl", "conversations", {}),
        ("v1_dpo_demo.jsonl", "pairs", {"chosen": "chosen_messages", "rejected": "rejected_messages"}),
    ],
)
def test_rows_in_v1s_form_are_read(name: str, task: Any, columns: dict[str, str | None], shared: Path) -> None:
    lines = (shared / "data" / name).read_text(encoding="utf-8").splitlines()[:20]
    rows = [RawRow(json.loads(line), name, number) for number, line in enumerate(lines, 1)]
    spec = DatasetSpec(path=name, columns=columns)
    _, convert = choose_format(spec, rows, task)
    read = [convert(row.values) for row in rows]
    assert not [row for row in read if isinstance(row, BadRow)]
    assert task == "pairs" or all(isinstance(row, Conversation) for row in read)


@pytest.mark.parametrize(
    ("theirs", "quantization", "double"),
    [
        ({"name": "bnb", "quantization_bit": 4}, "nf4", True),
        ({"name": "bnb"}, "nf4", True),
        ({"name": "auto", "quantization_bit": 4, "double_quantization": False}, "nf4", False),
        ({"name": "auto"}, None, False),
        ({"name": "bnb", "compute_dtype": "bfloat16"}, "nf4", True),
    ],
    ids=str,
)
def test_a_quantised_base_is_translated(
    theirs: dict[str, Any], quantization: str | None, double: bool, translate: Translate
) -> None:
    model = translate({"quant_config": theirs, "peft_config": {"name": "lora"}}).model
    assert (model.quantization, model.double_quantization) == (quantization, double)
