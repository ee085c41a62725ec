"""Recipes of LLaMA-Factory, and the purpose of its other files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.recipe import Recipe

MODEL = "model_name_or_path: base\n"


@pytest.mark.parametrize(
    ("text", "said", "remedy"),
    [
        (MODEL + "batch: {per_device: 1}\n", "'batch' is a native key", "recipe convert"),
        (MODEL + "model: {path: base}\n", "'model' is a native key", "one form"),
        ("stage: sft\ndataset: a\ntemplate: qwen\n", "without 'model_name_or_path'", "add it"),
        ("distributed_type: FSDP\nmixed_precision: bf16\n", "accelerate", "parallel.strategy=fsdp precision=bf16"),
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 2, fsdp_offload_params: true}\n",
            "accelerate",
            "train RECIPE parallel.strategy=fsdp parallel.fsdp.reshard=false parallel.fsdp.offload=true",
        ),
        (
            "distributed_type: DEEPSPEED\n"
            "deepspeed_config: {zero_stage: 2, offload_optimizer_device: cpu, offload_param_device: cpu}\n",
            "accelerate",
            "parallel.strategy=deepspeed parallel.deepspeed.stage=2 parallel.deepspeed.offload_optimizer=cpu",
        ),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: a b.json}\n",
            "accelerate",
            "parallel.strategy=deepspeed 'parallel.deepspeed.config=a b.json'",
        ),
        ("top.finetuning_type: lora\ntrain.cutoff_len: 9\n", "LLaMA Board", "training_args.yaml"),
        ("distributed_type: MULTI_NPU\nmixed_precision: 'no'\n", "accelerate", "train RECIPE parallel.strategy=ddp"),
        ('"<|a|>": begins an a\n"<|b|>": ends it\n', "a list of new tokens", "add_special_tokens: <|a|>, <|b|>;"),
        ("zero_optimization: {stage: 3}\n", "configures DeepSpeed", "deepspeed: {config: FILE}"),
        (
            MODEL + "adapter_name_or_path: saves/a, saves/b\nexport_dir: my models/out\n",
            "merges an adapter",
            "ascendtune merge saves/a --adapter saves/b --onto base --to 'my models/out'",
        ),
        (
            MODEL + "adapter_name_or_path: [saves/a, saves/b]\nexport_dir: out\n",
            "merges an adapter",
            "ascendtune merge saves/a --adapter saves/b --onto base --to out",
        ),
        (MODEL + "export_dir: out\n", "no adapter to merge", "copy"),
        (MODEL + "export_dir: out\nexport_quantization_bit: 4\n", "quantised", "ascendtune merge"),
        (MODEL + "template: qwen\ninfer_backend: vllm\n", "no dataset", "ascendtune chat base"),
        (MODEL + "adapter_name_or_path: saves/a\n", "no dataset", "ascendtune chat saves/a"),
        (MODEL + "eval_dataset: a\ndo_predict: true\n", "generates answers", "ascendtune generate base"),
    ],
)
def test_a_file_that_does_not_train_is_answered_with_what_does(
    text: str, said: str, remedy: str, tmp_path: Path
) -> None:
    path = tmp_path / "theirs.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path)
    assert said in caught.value.what and remedy in caught.value.remedy
    assert str(caught.value.where).startswith(str(path))


def test_recipe_that_also_predicts_is_not_said_not_to_train(write: Callable[..., Path]) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(write({"do_predict": True}))
    assert caught.value.what == "do_predict: generating answers is not a part of training here"
    assert caught.value.remedy.startswith("remove it, train, then: ascendtune generate RUN ")


def test_recipe_that_trains_may_name_an_export_directory_without_effect(write: Callable[..., Path]) -> None:
    recipe, origins = Recipe.load_with_origins(write({"export_dir": "out"}))
    assert any(note.startswith("export_dir: no effect: ") for note in recipe.all_without_effect(origins))


def test_a_native_recipe_gets_no_notes(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text("model: {path: base}\ndata: {train: rows.json, template: qwen}\nseed: 7\n")
    assert Recipe.load(path).notes == ()


def test_the_command_line_takes_native_and_llamafactory_keys(write: Callable[..., Path]) -> None:
    assert Recipe.load(write(), ["optim.epochs=1", "seed=3"]).optim.epochs == 1
    schedule = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}}
    assert Recipe.load(write(schedule), ["lr_scheduler_kwargs.min_lr_rate=0.2"]).optim.min_learning_rate_ratio == 0.2
    changed = Recipe.load(write(), ["num_train_epochs=2", "learning_rate=3e-4", "seed=5", "method.tuner=lora"])
    assert (changed.optim.epochs, changed.learning_rate, changed.seed, changed.method.tuner) == (2, 3e-4, 5, "lora")
    with pytest.raises(RecipeError) as caught:
        Recipe.load(write(), ["num_train_epochs=many"])
    assert str(caught.value.where) == "command line 'num_train_epochs=many'"


def test_seed_is_a_key_of_both(write: Callable[..., Path]) -> None:
    assert Recipe.load(write({"seed": 7})).seed == 7


def test_keys_without_effect_are_apart_from_differences(write: Callable[..., Path]) -> None:
    recipe, origins = Recipe.load_with_origins(write({"plot_loss": True, "output_dir": "saves/x"}))
    ignored = recipe.all_without_effect(origins)
    assert any(sentence.startswith("plot_loss: no effect: ") for sentence in ignored)
    assert recipe.differences() and not set(ignored) & set(recipe.differences())
    assert {*recipe.differences(), *ignored} >= set(recipe.notes)
