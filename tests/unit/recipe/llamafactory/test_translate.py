"""Each key of LLaMA-Factory is translated, reported as without effect, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.llamafactory.ignored_keys import IGNORED_KEYS
from ascendtune.recipe.llamafactory.keys import TRANSLATED
from ascendtune.recipe.llamafactory.unsupported import UNSUPPORTED_KEYS
from ascendtune.recipe.recipe import Recipe

Write = Callable[..., Path]
Read = Callable[..., dict[str, Any]]


def _at(values: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        values = values[part]
    return values


def test_absent_keys_get_llamafactory_defaults(read: Read) -> None:
    values = read()
    expected = {
        "method.tuner": "lora", "optim.learning_rate": 5e-5, "optim.scheduler": "linear", "optim.epochs": 3.0,
        "batch.per_device": 8, "batch.accumulate": 1, "data.max_length": 2048, "data.packing": False,
        "precision": "fp32", "memory.gradient_checkpointing": True, "checkpoint.every_steps": 500,
        "track.every_steps": 500, "track.tensorboard": False, "run_dir": "saves/{name}", "name": "sft",
        "data.on_bad_row": "skip",
    }  # fmt: skip
    assert {key: _at(values, key) for key in expected} == expected
    assert "eval" not in values and "parallel" not in values


def test_no_and_0_as_yaml_reads_them_are_understood(read: Read) -> None:
    values = read({"save_strategy": False, "eval_strategy": False, "neftune_noise_alpha": 0})
    assert "every_steps" not in values["checkpoint"] and "eval" not in values and "sft" not in values["method"]


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("dpo_beta", "pref_beta", 0.3),
        ("dpo_loss", "pref_loss", "ipo"),
        ("dpo_ftx", "pref_ftx", 0.3),
        ("orpo_beta", "pref_beta", 0.3),
        ("name_module_trainable", "freeze_trainable_modules", "mlp"),
        ("num_layer_trainable", "freeze_trainable_layers", 3),
        ("new_special_tokens", "add_special_tokens", "<a>"),
        ("neft_alpha", "neftune_noise_alpha", 5.0),
        ("per_gpu_train_batch_size", "per_device_train_batch_size", 3),
        ("sft_packing", "packing", True),
        ("system_prompt", "default_system", "Be short."),
    ],
)
def test_older_name_is_the_same_key(old: str, new: str, value: Any, read: Read) -> None:
    others = {"stage": "dpo", "dataset": "pairs"} if "pref" in new else {}
    others |= {"finetuning_type": "freeze"} if "freeze" in new else {}
    assert read({**others, old: value}) == read({**others, new: value}) != read(others)


@pytest.mark.parametrize("key", ["save_safetensors", "include_inputs_for_metrics", "no_cuda", "reserved_label_len"])
def test_key_of_older_releases_is_known(key: str, read: Read) -> None:
    assert read({key: 1 if key == "reserved_label_len" else key == "save_safetensors"}) == read()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"bf16": True}, {"precision": "bf16"}),
        ({"pure_bf16": True}, {"precision": "bf16", "model.dtype": "bf16"}),
        ({"fp16": True}, {"precision": "fp16"}),
        ({"flash_attn": "fa2"}, {"model.attention": "auto"}),
        ({"flash_attn": "disabled"}, {"model.attention": "eager"}),
        ({"disable_gradient_checkpointing": True}, {"memory.gradient_checkpointing": False}),
        ({"train_from_scratch": True, "finetuning_type": "full"}, {"model.init": "random"}),
        ({"add_tokens": "<a>, <b>", "add_special_tokens": "<c>"}, {"model.new_tokens": ["<a>", "<b>", "<c>"]}),
        ({"max_steps": 7}, {"optim.max_steps": 7}),
        ({"warmup_ratio": 0.1}, {"optim.warmup_ratio": 0.1}),
        ({"warmup_steps": 20}, {"optim.warmup_steps": 20}),
        ({"warmup_steps": 20, "warmup_ratio": 0.1}, {"optim.warmup_ratio": 0.1}),
        ({"warmup_ratio": 12}, {"optim.warmup_steps": 12}),
        ({"warmup_steps": 0.1}, {"optim.warmup_ratio": 0.1}),
        ({"lr_scheduler_type": "constant_with_warmup", "warmup_ratio": 0.1}, {"optim.scheduler": "constant"}),
        (
            {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
            {"optim.scheduler": "cosine", "optim.min_learning_rate_ratio": 0.1},
        ),
        (
            {"learning_rate": 4e-6, "lr_scheduler_type": "cosine_with_min_lr",
             "lr_scheduler_kwargs": '{"min_lr": 1e-6}'},
            {"optim.scheduler": "cosine", "optim.min_learning_rate_ratio": 0.25},
        ),
        ({"max_grad_norm": 0.0}, {"optim.max_grad_norm": None}),
        ({"optim": "sgd"}, {"optim.optimizer": "sgd"}),
        ({"use_muon": True, "finetuning_type": "full"}, {"optim.optimizer": "muon"}),
        ({"use_dft_loss": True}, {"method.sft.loss": "dft"}),
        (
            {"finetuning_type": "freeze", "freeze_trainable_layers": 3, "use_llama_pro": True},
            {"method.freeze.spread_layers": 3},
        ),
        ({"use_asft_loss": True, "asft_alpha": 0.05}, {"method.sft.loss": "asft", "method.sft.asft_alpha": 0.05}),
        ({"use_eaft_loss": True, "eaft_alpha": 0.5}, {"method.sft.loss": "eaft", "method.sft.eaft_alpha": 0.5}),
        ({"neftune_noise_alpha": 5}, {"method.sft.neftune_alpha": 5}),
        ({"flash_attn": False}, {"model.attention": "eager"}),
        ({"save_total_limit": -1}, {"checkpoint.keep": 10_000}),
        ({"stage": "kto", "dataset": "marked", "pref_loss": "kto"}, {"method.preference.loss": "kto"}),
        ({"optim": "adafactor"}, {"optim.optimizer": "adafactor"}),
        ({"neat_packing": True}, {"data.packing": True, "data.max_length": 2047}),
        ({"train_on_prompt": True}, {"data.loss_on": "all"}),
        ({"val_size": 0.1}, {"data.eval_fraction": 0.1}),
        ({"val_size": 100}, {"data.eval_rows": 100}),
        ({"fsdp": "", "ref_model": ""}, {"method.stage": "sft"}),
        ({"eval_dataset": "rows", "eval_strategy": "steps"}, {"eval.every_steps": 500}),
        ({"val_size": 0.1, "evaluation_strategy": "steps", "eval_steps": 9}, {"eval.every_steps": 9}),
        ({"val_size": 0.1, "load_best_model_at_end": True}, {"checkpoint.best": True}),
        ({"val_size": 0.1, "early_stopping_steps": 4}, {"eval.early_stop.patience": 4}),
        ({"output_dir": "/a/b/c-1.2/"}, {"run_dir": "/a/b/{name}", "name": "c-1.2"}),
        ({"output_dir": "my runs/a b"}, {"run_dir": "my runs/a b"}),
        ({"save_total_limit": 3}, {"checkpoint.keep": 3}),
        ({"resume_from_checkpoint": "saves/a/checkpoints/step_3"}, {"checkpoint.resume": "saves/a/checkpoints/step_3"}),
        ({"report_to": ["tensorboard"]}, {"track.tensorboard": True}),
        ({"report_to": "wandb"}, {"track.tensorboard": False, "track.send_to": ["wandb"]}),
        ({"report_to": "all"}, {"track.tensorboard": True}),
        ({"report_to": ["all", "wandb"]}, {"track.tensorboard": True, "track.send_to": ["wandb"]}),
        ({"report_to": "none"}, {"track.tensorboard": False}),
        ({"report_to": ["swanlab"], "use_swanlab": True}, {"track.send_to": ["swanlab"]}),
        ({"report_to": "trackio", "project": "qa"}, {"track.send_to": ["trackio"], "track.project": "qa"}),
        ({"use_swanlab": True}, {"track.send_to": ["swanlab"], "track.project": "llamafactory"}),
        ({"lora_target": "all"}, {"method.lora.target": "all-linear"}),
        ({"lora_target": "q_proj, v_proj"}, {"method.lora.target": ["q_proj", "v_proj"]}),
        ({"additional_target": "embed_tokens,lm_head"}, {"method.lora.modules_to_save": ["embed_tokens", "lm_head"]}),
        ({"resize_vocab": True}, {"method.lora.modules_to_save": "all-embeddings"}),
        ({"add_tokens": "<a>"}, {"method.lora.modules_to_save": "all-embeddings"}),
        ({"add_special_tokens": "<a>"}, {"method.lora.modules_to_save": "all-embeddings"}),
        ({"resize_vocab": True, "additional_target": "norm"}, {"method.lora.modules_to_save": ["norm"]}),
        ({"pissa_init": True}, {"method.lora.init": "pissa"}),
        ({"loraplus_lr_ratio": 16.0}, {"method.lora.plus_ratio": 16.0}),
        ({"adapter_name_or_path": "a, b"}, {"method.lora.start_from": ["a", "b"]}),
        (
            {"finetuning_type": "oft", "lora_target": "q_proj"},
            {"method.tuner": "oft", "method.oft.block_size": 32, "method.oft.target": ["q_proj"]},
        ),
        (
            {"finetuning_type": "oft", "oft_rank": 4, "module_dropout": 0.1, "oft_target": "k_proj",
             "lora_target": "all"},
            {"method.oft.rank": 4, "method.oft.module_dropout": 0.1, "method.oft.target": ["k_proj"]},
        ),
        (
            {"finetuning_type": "oft", "adapter_name_or_path": "a"},
            {"method.oft.start_from": ["a"]},
        ),
        (
            {"finetuning_type": "oft", "oft_block_size": 8, "additional_target": "norm"},
            {"method.oft.block_size": 8, "method.oft.modules_to_save": ["norm"]},
        ),
        ({"finetuning_type": "oft", "resize_vocab": True}, {"method.oft.modules_to_save": "all-embeddings"}),
        ({"finetuning_type": "freeze"}, {"method.freeze.last_layers": 2}),
        (
            {"finetuning_type": "freeze", "freeze_trainable_layers": -3, "freeze_trainable_modules": "mlp,self_attn"},
            {"method.freeze.first_layers": 3, "method.freeze.last_layers": 0,
             "method.freeze.modules": ["mlp", "self_attn"]},
        ),
        ({"stage": "rm", "dataset": "pairs"}, {"method.stage": "reward"}),
        ({"stage": "dpo", "dataset": "pairs"}, {"method.stage": "preference", "method.preference.loss": "sigmoid"}),
        (
            {"stage": "dpo", "dataset": "pairs", "pref_loss": "simpo", "simpo_gamma": 1.5, "pref_ftx": 0.5},
            {"method.preference.loss": "simpo", "method.preference.simpo_gamma": 1.5,
             "method.preference.sft_weight": 0.5},
        ),
        (
            {"stage": "kto", "dataset": "marked", "kto_chosen_weight": 2.0, "ref_model": "base"},
            {"method.preference.loss": "kto", "method.preference.desirable_weight": 2.0,
             "method.preference.reference": "base"},
        ),
        ({"template": "qwen3"}, {"data.template": "qwen3"}),
        ({"template": "qwen3", "stage": "dpo", "dataset": "pairs"}, {"data.template": "qwen3_last_thought"}),
        ({"template": "glm4_moe", "stage": "kto", "dataset": "marked"}, {"data.template": "glmz1_last_thought"}),
        ({"template": "deepseekr1", "stage": "rm", "dataset": "pairs"}, {"data.template": "deepseekr1_last_thought"}),
        ({"template": "llama2", "stage": "dpo", "dataset": "pairs"}, {"data.template": "llama2"}),
        ({"stage": "pt", "dataset": "text"}, {"method.stage": "pretrain", "data.packing": True}),
        ({"stage": "pt", "dataset": "text", "packing": False}, {"data.packing": False}),
        ({"deepspeed": "ds.json"}, {"parallel.strategy": "deepspeed", "parallel.deepspeed.config": "ds.json"}),
        (
            {"deepspeed": {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}},
            {"parallel.deepspeed.stage": 3, "parallel.deepspeed.offload_param": "cpu"},
        ),
        ({"fsdp": "full_shard auto_wrap offload"}, {"parallel.strategy": "fsdp", "parallel.fsdp.offload": True}),
        ({"fsdp": ["shard_grad_op"]}, {"parallel.fsdp.reshard": False}),
        ({"fsdp": "hybrid_shard"}, {"parallel.fsdp.replicas": "nodes"}),
        ({"fsdp": "hybrid_shard_zero2"}, {"parallel.fsdp.replicas": "nodes", "parallel.fsdp.reshard": False}),
        (
            {"fsdp": "full_shard", "fsdp_config": {"fsdp_reshard_after_forward": False, "fsdp_version": 2}},
            {"parallel.fsdp.reshard": False},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_key_is_translated(theirs: dict[str, Any], ours: dict[str, Any], read: Read) -> None:
    values = read(theirs)
    assert {key: _at(values, key) for key in ours} == ours


@pytest.mark.parametrize("name", [name for name, key in TRANSLATED.items() if key.copied])
def test_copied_keys_arrive_unchanged(name: str, read: Read) -> None:
    examples = {"text": "x", "whole number": 3, "number": 0.25, "truth": True, "names": ["x"]}
    kind = TRANSLATED[name].kind
    assert isinstance(kind, str)
    value = 5 if name == "logging_steps" else examples[kind]
    assert _at(read({name: value, "val_size": 0.1}), TRANSLATED[name].becomes) == value


def test_the_example_of_their_guide_is_a_recipe(write: Write) -> None:
    theirs = {
        "lora_rank": 16, "lora_alpha": 32, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8,
        "learning_rate": 1e-4, "num_train_epochs": 2.0, "lr_scheduler_type": "cosine", "warmup_ratio": 0.1,
        "bf16": True,
        "cutoff_len": 1024, "max_samples": 100, "logging_steps": 10, "preprocessing_num_workers": 4,
    }  # fmt: skip
    recipe, origins = Recipe.load_with_origins(write(theirs), ["optim.max_steps=3"])
    assert recipe.optim.learning_rate == 1e-4 and recipe.method.lora.rank == 16
    assert recipe.optim.max_steps == 3 and recipe.optim.epochs is None
    assert recipe.data.train[0].limit == 100 and recipe.data.train[0].path == "data/rows.json"
    assert origins["method.lora.rank"] == "theirs.yaml:8" and origins["seed"] == "default"
    assert origins["checkpoint.every_steps"] == "theirs.yaml, by LLaMA-Factory's default"
    assert not recipe.without_effect(origins)


def test_numbers_are_read_as_their_users_mean_them(write: Write) -> None:
    path = write()
    path.write_text(path.read_text() + "learning_rate: 1e-4\nsave_steps: 1e3\n")
    recipe = Recipe.load(path)
    assert recipe.optim.learning_rate == 1e-4 and recipe.checkpoint.every_steps == 1000


def test_json_is_read_too(write: Write, tmp_path: Path) -> None:
    write()
    (tmp_path / "theirs.json").write_text(
        '{\n\t"model_name_or_path": "m",\n\t"do_train": true,\n\t"dataset": "rows",\n\t"bf16": true\n}'
    )
    recipe, origins = Recipe.load_with_origins("theirs.json")
    assert recipe.model.path == "m" and origins["precision"] == "theirs.json:5"


def _refusals(path: Path) -> list[RecipeError]:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path)
    return [caught.value, *(each for each in caught.value.further if isinstance(each, RecipeError))]


@pytest.mark.parametrize(
    ("theirs", "said", "remedy"),
    [
        ({"lora_rnk": 8}, "LLaMA-Factory has no key 'lora_rnk'", "did you mean 'lora_rank'?"),
        ({"lora_rank": "eight"}, "'lora_rank: eight' is not valid", "a whole number"),
        ({"lora_rank": 8.5}, "'lora_rank: 8.5'", "a whole number"),
        ({"bf16": 1}, "'bf16: 1'", "true or false"),
        ({"stage": "sfft"}, "'stage: sfft'", "did you mean 'sft'?"),
        ({"flash_attn": "flash2"}, "flash_attn", "choose one of: auto"),
        ({"cutoff_len": -5}, "data.max_length: -5", "greater"),
        ({"lora_dropout": 5}, "method.lora.dropout", "less than 1"),
        ({"pref_loss": "simppo", "stage": "dpo", "dataset": "pairs"}, "simppo", "did you mean 'simpo'?"),
        ({"pref_loss": "dpo", "stage": "dpo", "dataset": "pairs"}, "pref_loss: dpo", "use sigmoid"),
        ({"pref_loss": "kto", "stage": "dpo", "dataset": "pairs"}, "pref_loss: kto", "use stage: kto"),
        ({"stage": "orpo", "dataset": "pairs"}, "'stage: orpo' is not valid", "stage: dpo and pref_loss: orpo"),
        ({"split": "test"}, "split", "dataset_info.json"),
        ({"interleave_probs": "0.3,0.7"}, "mixing data sets", "a weight"),
        ({"no_cuda": True}, "devices are chosen", "--devices"),
        ({"pref_loss": "kto_pair", "stage": "dpo", "dataset": "pairs"}, "kto_pair", "stage: kto"),
        ({"stage": "ppo"}, "ppo is not supported in this version", "dpo"),
        ({"finetuning_type": "oft", "oft_rank": 4, "oft_block_size": 8}, "contradict", "keep one"),
        ({"finetuning_type": "oft", "oft_block_size": 0}, "leaves no blocks", "set one"),
        ({"finetuning_type": "oft", "module_dropout": 1}, "method.oft.module_dropout", "less than 1"),
        ({"adapter_name_or_path": "a", "finetuning_type": "freeze"}, "cannot continue adapters", "merge"),
        ({"lr_scheduler_type": "polynomial"}, "polynomial", "constant_with_warmup"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "needs min_lr or min_lr_rate", "{min_lr_rate: 0.1}"),
        ({"lr_scheduler_kwargs": {"num_cycles": 2}}, "lr_scheduler_kwargs with lr_scheduler_type: linear", "remove"),
        ({"bf16": True, "fp16": True}, "contradict", "keep one"),
        ({"dpo_beta": 0.1, "pref_beta": 0.3}, "names of one key", "remove dpo_beta"),
        ({"val_size": 0.1, "eval_dataset": "rows"}, "contradict", "keep one"),
        ({"val_size": 1.5}, "val_size: 1.5", "a number of rows"),
        ({"eval_strategy": "steps"}, "needs evaluation data", "data.eval"),
        ({"save_steps": 0.1}, "save_steps", "number of steps"),
        ({"output_dir": "."}, "not a directory for one run", "below it"),
        ({"finetuning_type": "galore"}, "'finetuning_type: galore'", "choose one of: lora, oft, freeze, full"),
        ({"visual_inputs": True}, "images, video and sound are not supported in this version", "text"),
        ({"audio_inputs": True}, "no key 'audio_inputs'", "docs/compat.md"),
        ({"master_addr": "10.0.0.1"}, "rendezvous of nodes", "--nodes HOSTS"),
        ({"optim": "paged_adamw_8bit"}, "optimizers of bitsandbytes are not supported", "adamw_torch"),
        ({"optim": "paged_lion_32bit"}, "optimizers of bitsandbytes are not supported", "adamw_torch"),
        ({"deepspeed": {"zero_optimization": {"stage": 2}, "steps_per_print": 5}}, "deepspeed", "JSON file"),
        ({"fsdp": "shard_all"}, "shard_all", "full_shard"),
        ({"template": "qwen3_noth"}, "no template 'qwen3_noth'", "did you mean 'qwen3_nothink'?"),
        ({"template": "vicuna"}, "vicuna is not supported in this version", "data.template=FILE.jinja"),
        ({"template": "qwen2_vl"}, "multimodal", "text"),
        ({"template": "qwen3", "enable_thinking": False}, "enable_thinking: false", "qwen3_nothink"),
        ({"template": "glm4_7", "enable_thinking": False}, "enable_thinking: false", "glm4"),
        (
            {"template": "qwen3", "preserve_thinking": True, "stage": "dpo", "dataset": "pairs"},
            "preserve_thinking with stage: dpo", "remove it",
        ),
        ({"model_name_or_path": ""}, "names no model", "a directory or a hub id"),
        ({"model_name_or_path": 7}, "'model_name_or_path: 7' is not valid", "text"),
        ({"adapter_name_or_path": "a", "finetuning_type": "full"}, "cannot continue adapters", "merge"),
        ({"dataset": None}, "dataset is missing", "dataset_info.json"),
        ({"do_train": None}, "would not train", "add do_train: true"),
    ],
    ids=str,
)  # fmt: skip
def test_an_error_names_the_llamafactory_key(theirs: dict[str, Any], said: str, remedy: str, write: Write) -> None:
    first = _refusals(write(theirs))[0]
    assert said in first.what and remedy in first.remedy
    assert str(first.where).startswith("theirs.yaml")


@pytest.mark.parametrize("key", UNSUPPORTED_KEYS)
def test_unsupported_key_is_refused_by_name_unless_it_has_its_default(key: str, write: Write) -> None:
    default = UNSUPPORTED_KEYS[key].default
    asked = not default if isinstance(default, bool) else "something"
    refusals = _refusals(write({key: asked}))
    assert [each.what for each in refusals] == [f"{key}: {UNSUPPORTED_KEYS[key].what}"]
    assert refusals[0].remedy and refusals[0].where == "theirs.yaml:8"
    Recipe.load(write({key: default}))


def test_errors_of_data_sets_and_of_other_keys_are_said_at_once(write: Write) -> None:
    refusals = _refusals(
        write({"use_galore": True, "dataset": "absent,gone", "template": "no_such", "eval_dataset": "away"})
    )
    said = " ".join(each.what for each in refusals)
    assert all(name in said for name in ("use_galore", "absent", "gone", "no_such", "away"))


@pytest.mark.parametrize("key", ["dataset", "dataset_dir", "stage"])
def test_an_invalid_value_is_refused_once_and_has_no_consequences(key: str, write: Write) -> None:
    assert [each.what for each in _refusals(write({key: [[1]]}))] == [f"'{key}: [[1]]' is not valid"]
    assert len(_refusals(write({key: [[1]], "template": "no_such"}))) == 2


def test_similar_keys_are_looked_for_as_long_as_they_are_shown(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    monkeypatch.setattr(
        "ascendtune.recipe.llamafactory.llamafactory_recipe.did_you_mean",
        lambda key, valid, *_, **__: searched.append(len(valid)) or "nothing is similar",
    )
    refusals = _refusals(write({f"nonsense_{number}": 1 for number in range(500)}))
    assert len(refusals) == 51 and len(searched) == 500 and sum(map(bool, searched)) == 50


def test_all_is_said_at_once(write: Write) -> None:
    refusals = _refusals(write({"use_galore": True, "lora_rank": "eight", "use_apollo": True, "nonsense": 1}))
    assert len(refusals) == 4
    lines = [int(str(each.where).rpartition(":")[2]) for each in refusals]
    assert lines == sorted(lines)


def test_unsupported_tracker_is_noted_and_training_continues(write: Write) -> None:
    recipe = Recipe.load(write({"report_to": ["comet_ml", "mlflow"]}))
    assert not recipe.track.tensorboard and recipe.track.send_to == ["mlflow"]
    assert any(note.startswith("report_to: comet_ml: no effect") for note in recipe.notes)


def test_all_trackers_are_tensorboard_alone_and_that_is_noted(write: Write) -> None:
    recipe = Recipe.load(write({"report_to": "all"}))
    assert [note for note in recipe.notes if note.startswith("report_to: all: TensorBoard")]


def test_swanlab_in_local_mode_sends_nothing_and_is_noted(write: Write) -> None:
    recipe = Recipe.load(write({"use_swanlab": True, "swanlab_mode": "local"}))
    assert recipe.track.send_to == [] and any("swanlab_mode: local" in note for note in recipe.notes)


def test_project_with_an_invalid_name_is_noted_and_not_taken(write: Write) -> None:
    recipe = Recipe.load(write({"use_swanlab": True, "swanlab_project": "my project"}))
    assert recipe.track.project == "ascendtune" and any(note.startswith("swanlab_project") for note in recipe.notes)


def test_key_without_effect_is_noted_with_its_reason(write: Write) -> None:
    notes = Recipe.load(write({"plot_loss": True, "ddp_timeout": 180000000, "overwrite_cache": True})).notes
    for key in ("plot_loss", "ddp_timeout", "overwrite_cache"):
        assert any(note.startswith(key) and IGNORED_KEYS[key][1] in note for note in notes)
    assert not any("no effect" in note for note in Recipe.load(write({"plot_loss": False, "ddp_timeout": 1800})).notes)


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"overwrite_output_dir": True}, "is resumed"),
        ({"per_gpu_eval_batch_size": 4}, "per_gpu_eval_batch_size"),
        ({"pref_loss": "ipo", "stage": "dpo", "dataset": "pairs"}, "train sigmoid in its place"),
        ({"packing": True}, "do not attend to each other"),
        ({"stage": "pt", "dataset": "text"}, "do not attend to each other"),
        ({"stage": "pt", "dataset": "text", "packing": False}, "LLaMA-Factory cuts it"),
        ({"template": None, "enable_thinking": False}, "the model's own chat template"),
        ({"template": "qwen3", "preserve_thinking": True}, "preserve_thinking: no effect"),
        ({"flash_attn": "fa2"}, "the device's own"),
        ({}, "is cut at its end, without EOS"),
        ({"lr_scheduler_type": "constant", "warmup_ratio": 0.1}, "has no warm-up"),
        ({"val_size": 0.1}, "after each epoch"),
        ({"adapter_name_or_path": "a", "stage": "dpo", "dataset": "pairs"}, "without any adapter"),
        (
            {"stage": "kto", "dataset": "marked", "pref_ftx": 0.3, "per_device_train_batch_size": 2},
            "LLaMA-Factory's weight grows",
        ),
        ({"optim": "adafactor"}, "trains more slowly here"),
        ({"warmup_steps": 20, "warmup_ratio": 0.0}, "warmup_steps: no effect"),
        ({"packing": True}, "is cut at its end, without EOS"),
        ({"loraplus_lr_ratio": 8.0, "lora_target": "q_proj,embed_tokens"}, "learns at loraplus_lr_embedding"),
        ({"loraplus_lr_ratio": 8.0, "use_dora": True}, "DoRA's magnitudes learn faster"),
        ({"use_dora": True, "weight_decay": 0.1}, "magnitudes do not decay"),
        ({"use_asft_loss": True, "gradient_accumulation_steps": 4}, "times as large, before clipping"),
        ({"neftune_noise_alpha": 5}, "longest row in its batch"),
        ({"stage": "rm", "dataset": "pairs"}, "without dropout"),
        ({"stage": "dpo", "dataset": "pairs", "lora_dropout": 0.1}, "lora_dropout: no effect"),
        ({"stage": "kto", "dataset": "marked", "gradient_accumulation_steps": 2}, "for each micro-batch by itself"),
        ({"train_on_prompt": True}, "also counts the first token"),
        ({"stage": "pt", "dataset": "text", "packing": False}, "also counts the first token"),
        ({"val_size": 0.1}, "one over batches"),
        ({"finetuning_type": "freeze", "freeze_extra_modules": "norm"}, "the norms of all layers"),
        ({"stage": "pt", "dataset": "text", "template": "qwen"}, "LLaMA-Factory writes <|im_end|>"),
        ({"template": "llama3", "dataset": "calls"}, "rows with tools or tool calls are left out"),
        (
            {"use_muon": True, "finetuning_type": "full", "weight_decay": 0.1},
            "norms do not decay; in LLaMA-Factory they do",
        ),
        ({"freeze_trainable_layers": 3}, "freeze_trainable_layers: no effect: finetuning_type is lora"),
        (
            {"oft_rank": 3, "oft_target": "q_proj", "finetuning_type": "full"},
            "oft_rank, oft_target: no effect: finetuning_type is full",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_a_difference_from_llamafactory_is_noted(theirs: dict[str, Any], said: str, write: Write) -> None:
    assert any(said in note for note in Recipe.read(write(theirs)).notes)


@pytest.mark.parametrize(
    ("theirs", "unsaid"),
    [
        ({"loraplus_lr_ratio": 8.0}, "loraplus"),
        ({"use_dora": True}, "magnitudes"),
        ({"use_muon": True, "finetuning_type": "full"}, "norms do not decay"),
        ({"template": "llama3"}, "tools"),
        ({"template": "qwen", "dataset": "calls"}, "tools"),
        ({"stage": "pt", "dataset": "text", "template": "deepseek"}, "EOS"),
        ({"use_asft_loss": True}, "before clipping"),
        ({"finetuning_type": "freeze", "freeze_extra_modules": "embed_tokens"}, "freeze_extra_modules"),
        ({"finetuning_type": "freeze", "freeze_trainable_layers": 3}, "no effect"),
        ({"val_size": 0.1, "stage": "dpo", "dataset": "pairs"}, "one over batches"),
    ],
    ids=str,
)  # fmt: skip
def test_no_difference_is_noted_where_there_is_none(theirs: dict[str, Any], unsaid: str, write: Write) -> None:
    assert not any(unsaid in note for note in Recipe.read(write(theirs)).notes)


@pytest.mark.parametrize("stage", ["dpo", "kto"])
def test_preferences_are_trained_without_dropout(stage: str, read: Read) -> None:
    values = read({"stage": stage, "dataset": "marked" if stage == "kto" else "pairs", "lora_dropout": 0.1})
    assert "dropout" not in values["method"].get("lora", {})
    assert read({"lora_dropout": 0.1})["method"]["lora"]["dropout"] == 0.1


@pytest.mark.parametrize("theirs", [{"finetuning_type": "freeze"}, {"adapter_name_or_path": "a"}])
def test_resize_vocab_without_new_tokens_trains_no_embeddings(theirs: dict[str, Any], write: Write) -> None:
    recipe = Recipe.load(write({"resize_vocab": True, **theirs}))
    assert not recipe.method.lora.modules_to_save
    assert any("resize_vocab: no effect" in note for note in recipe.notes)


def test_a_run_of_ours_stands_for_its_weights(read: Read, tmp_path: Path) -> None:
    run = tmp_path / "saves" / "first"
    (run / "model").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    assert read({"model_name_or_path": "saves/first"})["model"]["path"] == "saves/first/model"
    preference = read({"stage": "dpo", "dataset": "pairs", "ref_model": "saves/first"})["method"]["preference"]
    assert preference["reference"] == "saves/first/model"


@pytest.mark.parametrize(("name", "value"), [("NNODES", "2"), ("FORCE_TORCHRUN", "1"), ("USE_MODELSCOPE_HUB", "1")])
def test_their_environment_is_not_a_problem(
    name: str, value: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    Recipe.load(write())


def test_unknown_way_of_sharding_is_refused_at_its_line(write: Write) -> None:
    assert _refusals(write({"fsdp": "shard_all"}))[0].where == "theirs.yaml:8"


def test_two_losses_at_once_are_refused(write: Write) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.read(write({"use_dft_loss": True, "use_eaft_loss": True}))
    assert caught.value.code == "conflicting-keys"
