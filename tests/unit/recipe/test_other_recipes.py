"""Configurations of axolotl, TRL and ms-swift are answered with commands that train the same."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.other_commands import native_commands
from ascendtune.recipe.recipe import Recipe

AXOLOTL = {
    "base_model": "m",
    "datasets": [{"path": "data/my rows.json", "type": "chat_template"}, {"path": "org/rows"}],
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
            "data.max_length=256 data.eval_fraction=0 data.on_long_row=drop data.packing=false method.lora.rank=8 "
            "optim.learning_rate=0.0002 optim.scheduler=cosine optim.optimizer=adamw optim.warmup_ratio=0.03 "
            "optim.epochs=1 batch.per_device=2 batch.accumulate=1 precision=bf16",
        ),
        (
            {"base_model": "m", "datasets": [{"path": "d"}], "rl": "dpo", "rl_beta": 0.2, "output_dir": "./out"},
            "axolotl",
            "ascendtune init --model m --data d --stage preference",
            "run_dir=./out data.eval_fraction=0 data.max_length=512 data.on_long_row=drop method.preference.beta=0.2 "
            "optim.warmup_ratio=0.03 optim.epochs=1 optim.scheduler=cosine batch.per_device=1 batch.accumulate=1",
        ),
        (
            TRL,
            "TRL",
            "ascendtune init --model m --data d --stage preference --tuner lora",
            "data.eval_fraction=0 data.max_length=1024 method.preference.beta=0.2 method.lora.rank=16 "
            "method.lora.alpha=32 method.lora.dropout=0 'method.lora.target=[q_proj,v_proj]' optim.warmup_ratio=0 "
            "optim.epochs=3 optim.scheduler=linear optim.learning_rate=1e-6 batch.per_device=2 batch.accumulate=1",
        ),
        (
            SWIFT,
            "ms-swift",
            "ascendtune init --model m --data d --stage preference --tuner lora",
            "data.max_length=64 data.train.0.limit=500 data.eval_fraction=0 data.on_long_row=drop "
            "method.preference.loss=simpo method.lora.rank=8 method.lora.alpha=32 method.lora.dropout=0 "
            "method.preference.sft_weight=1 method.preference.beta=2 method.preference.simpo_gamma=1 "
            "optim.warmup_ratio=0 optim.epochs=3 "
            "optim.scheduler=cosine optim.weight_decay=0.1 optim.beta2=0.95 optim.learning_rate=1e-4 "
            "batch.per_device=1 batch.accumulate=16",
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
    assert caught.value.remedy.partition("; ")[0] == f"{first}, then ascendtune train recipe.yaml {then}"
    assert _is_valid(tmp_path, first, shlex.split(then))


def _is_valid(directory: Path, init: str, changes: list[str]) -> bool:
    """Whether a recipe that `init` could have written takes them; raises RecipeError otherwise."""
    native = directory / "recipe.yaml"
    values: dict[str, Any] = {
        "model": {"path": "m"},
        "data": {"train": [{"path": path} for path in "abc"], "eval_fraction": 0.02},
        "optim": {"warmup_ratio": 0.03, "epochs": 3},
        "method": {
            "stage": "preference" if "--stage preference" in init else "sft",
            "tuner": "lora" if "--tuner lora" in init else "full",
        },
    }
    native.write_text(yaml.safe_dump(values))
    return bool(Recipe.load(native, changes))


_AXOLOTL = {"base_model": "m", "datasets": [{"path": "d"}]}
_TRL = {"model_name_or_path": "m", "dataset_name": "d"}
_SWIFT = {"model": "m", "dataset": "d"}


@pytest.mark.parametrize(
    ("values", "present", "absent"),
    [
        (_AXOLOTL | {"warmup_steps": 0.1}, "optim.warmup_ratio=0.1", "warmup_steps"),
        (_AXOLOTL | {"warmup_steps": 10}, "optim.warmup_steps=10", "warmup_ratio"),
        (_TRL | {"warmup_steps": 0, "warmup_ratio": 0.1}, "optim.warmup_ratio=0.1", "warmup_steps"),
        (_TRL | {"lr_scheduler_type": "constant", "warmup_steps": 9}, "optim.warmup_ratio=0 ", "warmup_steps"),
        (_TRL | {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 9}, "optim.scheduler=constant", "left"),
        (_AXOLOTL | {"num_epochs": 2, "max_steps": 7}, "optim.max_steps=7", "epochs"),
        (_TRL | {"num_train_epochs": 2, "max_steps": -1}, "optim.epochs=2", "max_steps"),
        (_TRL | {"max_length": 9, "max_prompt_length": 4}, "data.max_length=9 ", "max_length=4"),
        (_TRL | {"use_peft": True}, "'method.lora.target=[q_proj,v_proj]'", "left"),
        (_TRL | {"use_peft": True, "lora_target_modules": "all-linear"}, "method.lora.target=all-linear", "q_proj"),
        (_TRL | {"use_peft": True, "beta": 0.1, "lora_dropout": 0.1}, "method.lora.dropout=0 ", "dropout=0.1"),
        (_TRL | {"use_peft": True, "beta": 0.1, "lora_dropout": 0.1, "disable_dropout": False},
         "dropout=0.1", "dropout=0 "),
        (_AXOLOTL | {"adapter": "lora", "rl": "dpo", "lora_dropout": 0.1}, "method.lora.dropout=0 ", "dropout=0.1"),
        (_TRL | {"use_peft": True}, "method.lora.dropout=0.05", "left"),
        (_TRL | {"max_length": None}, "left out: max_length", "data.max_length"),
        (_TRL | {"max_length": 64}, "data.max_length=64", "on_long_row"),
        (_AXOLOTL | {"excess_length_strategy": "truncate"}, "data.on_long_row=truncate", "left"),
        (_SWIFT | {"truncation_strategy": "right"}, "data.on_long_row=truncate", "drop "),
        (_SWIFT | {"truncation_strategy": "left"}, "left out: truncation_strategy", "on_long_row=truncate"),
        (_AXOLOTL | {"datasets": None, "pretraining_dataset": [{"path": "p"}]}, "--stage pretrain", "on_long_row"),
        (_AXOLOTL | {"reward_model": True}, "data.on_long_row=drop", "left"),
        (_TRL | {"max_grad_norm": 0.0}, "optim.max_grad_norm=null", "norm=0"),
        (_TRL | {"bf16": False}, "precision=fp32", "left"),
        (_TRL | {"gradient_checkpointing": False}, "memory.gradient_checkpointing=false", "left"),
        (_TRL | {"bf16": False, "fp16": True}, "precision=fp16", "fp32"),
        (_AXOLOTL | {"bf16": False, "fp16": False}, "precision=fp32", "left"),
        (_TRL | {"logging_steps": 1}, "add data.loss_on=all", "left"),
        (_TRL | {"assistant_only_loss": True}, "data.loss_on=assistant", "loss_on=all"),
        (_TRL | {"completion_only_loss": True}, "data.loss_on=assistant", "loss_on=all"),
        (_TRL | {"completion_only_loss": False}, "data.loss_on=all", "add data.loss_on"),
        (_TRL | {"beta": 0.1, "completion_only_loss": False}, "add data.template=plain", "loss_on"),
        (_TRL | {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
         "optim.scheduler=cosine optim.min_learning_rate_ratio=0.1", "left"),
        (_TRL | {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-6}},
         "left out: lr_scheduler_kwargs", "min_learning_rate"),
        (_AXOLOTL | {"optimizer": "adafactor"}, "adafactor: a step here is learning_rate times", "left"),
        (_AXOLOTL | {"num_epochs": 1}, "optim.epochs=1", "add data"),
        (_TRL | {"loss_type": "dft"}, "method.sft.loss=dft", "preference"),
        (_TRL | {"dataset_config": "c", "dataset_train_split": "s"}, "train.0.subset=c data.train.0.split=s", "left"),
        (_TRL | {"eval_strategy": "steps", "eval_steps": 5}, "left out: eval_strategy", "eval.every_steps"),
        (_TRL | {"save_strategy": "epoch", "save_steps": 5}, "recipe.yaml", "checkpoint.every_steps"),
        (_AXOLOTL | {"val_set_size": 200, "eval_steps": 5}, "data.eval_rows=200", "eval_fraction=0.02"),
        (_AXOLOTL | {"eval_steps": 5, "save_steps": 0.5}, "left out: save_steps", "every_steps"),
        (_AXOLOTL | {"test_datasets": [{"path": "t"}]}, "data.eval=t", "left"),
        (_AXOLOTL | {"micro_batch_size": 2, "batch_size": 8}, "batch.per_device=2 batch.accumulate=4", "left"),
        (_AXOLOTL | {"batch_size": 8, "micro_batch_size": 2}, "batch.per_device=2 batch.accumulate=4", "left"),
        (_AXOLOTL | {"sample_packing": True, "train_on_inputs": True}, "data.packing=true data.loss_on=all", "left"),
        (_AXOLOTL | {"adapter": "qlora", "load_in_4bit": True, "strict": False},
         "model.quantization=nf4 model.double_quantization=true", "left out"),
        (_TRL | {"use_peft": True, "load_in_4bit": True}, "model.quantization=nf4", "double"),
        (_TRL | {"use_peft": True, "load_in_4bit": True, "use_bnb_nested_quant": True}, "double_quantization", "left"),
        (_TRL | {"use_peft": True, "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
         "left out: load_in_4bit, bnb_4bit_quant_type", "quantization"),
        (_TRL | {"load_in_4bit": True}, "left out: load_in_4bit", "quantization"),
        (_SWIFT | {"quant_method": "bnb", "quant_bits": 4}, "model.quantization=nf4 model.double", "left"),
        (_SWIFT | {"quant_method": "hqq", "quant_bits": 4}, "left out: quant_method, quant_bits", "quantization"),
        (_SWIFT | {"quant_method": "bnb", "quant_bits": 4, "deepspeed": "zero2"}, "quant_method", "quantization"),
        (_AXOLOTL | {"adapter": "lora", "lora_target_modules": ["a", "b"]}, "'method.lora.target=[a,b]'", "left"),
        (_AXOLOTL | {"lora_r": 8}, "recipe.yaml", "lora"),
        (_AXOLOTL | {"datasets": [{"path": "json", "data_files": ["a.json", "b.json"]}]}, "--data a.json --data b.json",
         "--data json"),
        (_AXOLOTL | {"datasets": None, "pretraining_dataset": [{"path": "p"}]}, "--data p --stage pretrain", "DATA"),
        (_AXOLOTL | {"datasets": [{"path": "a", "type": "completion", "field": "f"}]},
         "--data a --stage pretrain --columns text=f", "left"),
        (_AXOLOTL | {"datasets": [{"path": "a", "type": "completion"}, {"path": "b", "type": "alpaca"}]},
         "left out: datasets.0.type, datasets.1.type", "pretrain"),
        (_AXOLOTL | {"adapter": "lora", "lora_target_linear": True, "lora_target_modules": ["q_proj"]},
         "method.lora.target=all-linear", "q_proj"),
        (_SWIFT | {"per_device_train_batch_size": 6}, "batch.per_device=6 batch.accumulate=3", "left"),
        (_SWIFT | {"dataset_shuffle": False, "enable_thinking": False}, "left out: dataset_shuffle, enable_th", "true"),
        (_AXOLOTL | {"reward_model": True, "chat_template": "tokenizer_default"}, "--stage reward", "left"),
        (_AXOLOTL | {"datasets": [{"path": "a"}, {"path": "b", "split": "train[:9%]", "shards": 9}]},
         "left out: datasets.1.split, datasets.1.shards", "split=train"),
        (_AXOLOTL | {"datasets": [{"path": "a", "type": "chat_template", "roles_to_train": ["assistant", "tool"],
                                   "train_on_eos": "all", "roles": {"user": ["me"]}, "field_messages": "turns"}]},
         "left out: datasets.0.roles_to_train, datasets.0.train_on_eos, datasets.0.roles, datasets.0.field_messages",
         "0.type"),
        (_AXOLOTL | {"datasets": [{"path": "a", "roles_to_train": ["assistant"], "train_on_eos": "turn",
                                   "field_messages": "conversations", "ds_type": "json",
                                   "message_property_mappings": {"role": "from", "content": "value"}}]},
         "--data a", "left out"),
        (_TRL | {"loss_type": ["sigmoid", "sft"], "loss_weights": [1, 0.5], "dataloader_drop_last": True,
                 "dataloader_num_workers": 2},
         "left out: loss_type, loss_weights, dataloader_drop_last", "workers"),
        (_TRL | {"loss_type": ["sigmoid", "sft"]}, "--stage preference", "stage sft"),
        (_AXOLOTL | {"datasets": [{"path": "a", "train_on_split": "s", "revision": "r"}]},
         "data.train.0.split=s data.train.0.revision=r", "left"),
        (_AXOLOTL | {"fsdp_version": 2, "fsdp_config": {"offload_params": True, "reshard_after_forward": True}},
         "parallel.strategy=fsdp parallel.fsdp.offload=true", "left"),
        (_AXOLOTL | {"fsdp": ["full_shard", "auto_wrap"]}, "parallel.strategy=fsdp", "offload"),
        (_AXOLOTL | {"chat_template": "jinja"}, "left out: chat_template", "data.template"),
        (_AXOLOTL | {"rl": "simpo", "cpo_alpha": 0.0}, "method.preference.sft_weight=0.0", "sft_weight=1"),
        (_SWIFT | {"dataset": ["a#5", "HF::o/b:s#0"]}, "data.train.0.limit=5 data.train.1.subset=s", "train.1.limit"),
        (_SWIFT | {"label_smoothing_factor": 0.0, "truncation_strategy": "x"}, "left out: truncation", "label_smooth"),
        (_SWIFT | {"lora_dropout": 0}, "--tuner lora", "method.lora.dropout=0.05"),
        (_SWIFT | {"deepspeed": "zero3_offload"}, "parallel.deepspeed.stage=3", "left"),
        (_SWIFT | {"micro_batch_size": 2, "global_batch_size": "16", "lr": 1e-4, "min_lr": 1e-5},
         "optim.min_learning_rate_ratio=0.1 optim.warmup_ratio=0 optim.epochs=3 optim.scheduler=cosine "
         "optim.weight_decay=0.1 optim.beta2=0.95 batch.per_device=2 batch.accumulate=8", "left"),
        (_SWIFT | {"micro_batch_size": "2.0", "global_batch_size": "16.0"},
         "batch.per_device=2 batch.accumulate=8", "left"),
        (_AXOLOTL | {"batch_size": "8.0", "micro_batch_size": "2.0"}, "batch.per_device=2 batch.accumulate=4", "left"),
        (_SWIFT | {"micro_batch_size": 1, "train_iters": 9, "lr_warmup_iters": 2, "lr_decay_style": "linear",
                   "clip_grad": 0.5, "adam_eps": 1e-6},
         "optim.max_steps=9 optim.warmup_steps=2 optim.scheduler=linear optim.max_grad_norm=0.5 optim.epsilon=1e-06",
         "left"),
        (_SWIFT | {"learning_rate": 1e-4, "lr_scheduler_kwargs": '{"min_lr": 1e-6}'}, "ratio=0.01", "left"),
        (_SWIFT | {"fsdp": "my/offload/fsdp2.json"}, "parallel.strategy=fsdp", "parallel.fsdp.offload"),
        (_SWIFT | {"fsdp": "my/fsdp2.json"}, "left out: fsdp", "offload"),
        (_SWIFT | {"fsdp": "full_shard offload"}, "parallel.fsdp.offload=true", "left"),
        (_SWIFT | {"task_type": "seq_cls", "num_labels": 1, "rlhf_type": "rm"}, "--stage reward", "left out: task"),
        (_SWIFT | {"dataset": ["a#5"]}, "ms-swift draws them at random", "left"),
        (_SWIFT | {"eval_steps": 50, "split_dataset_ratio": 0}, "data.eval_fraction=0", "eval.every_steps"),
        (_SWIFT | {"torch_dtype": "bfloat16", "val_dataset": "v"}, "data.eval=v data.eval_fraction=0", "left"),
    ],
)  # fmt: skip
def test_values_keep_their_meaning_and_what_is_left_out_is_named(
    tmp_path: Path, values: dict[str, Any], present: str, absent: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    with pytest.raises(RecipeError) as caught:
        Recipe.load(file)
    commands, _, _ = caught.value.remedy.partition("; ")
    init, _, train = commands.partition(", then ")
    assert present in caught.value.remedy and absent not in caught.value.remedy
    assert _is_valid(tmp_path, init, shlex.split(train)[3:])


@pytest.mark.parametrize(
    ("values", "what"),
    [
        (_SWIFT | {"rlhf_type": "grpo", "beta": 0.0}, "rlhf_type: grpo"),
        (_AXOLOTL | {"rl": "grpo"}, "rl: grpo"),
        (_SWIFT | {"tuner_type": "adalora"}, "tuner_type: adalora"),
        (_AXOLOTL | {"adapter": "llama-adapter"}, "adapter: llama-adapter"),
        (_SWIFT | {"task_type": "embedding"}, "task_type: embedding"),
    ],
)
def test_method_that_is_not_supported_is_not_answered_with_another(
    tmp_path: Path, values: dict[str, Any], what: str
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(RecipeError, match=f"{what} is not supported") as caught:
        Recipe.load(tmp_path / "config.yaml")
    assert caught.value.code == "not-in-this-version"


@pytest.mark.parametrize(
    ("values", "tool"),
    [
        ({"model": {"_component_": "torchtune.models.llama3_1.lora_llama3_1_8b", "lora_rank": 8}}, "torchtune"),
        ({"data": {"train_files": "d.parquet"}, "model": {"path": "m"}, "trainer": {"total_epochs": 4}}, "verl"),
        ({"actor_rollout_ref": {"model": {"path": "m"}}}, "verl"),
        ({"run_mode": "finetune", "trainer": {"model_name": "llm"}, "seed": 0}, "MindFormers"),
        ({"model": "m", "data": {"dataset": "d"}, "training": {"training_type": "lora"}}, "Unsloth"),
    ],
)
def test_configuration_with_sections_is_recognised(tmp_path: Path, values: dict[str, Any], tool: str) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(RecipeError, match=f"a configuration of {tool}") as caught:
        Recipe.load(tmp_path / "config.yaml")
    assert caught.value.code == "recipe-of-another-tool" and "ascendtune init" in caught.value.remedy


@pytest.mark.parametrize(
    "data", [{"dataset_mixer": {"d": 0.5}, "dtype": "auto"}, {"datasets": [{"path": "d", "weight": 0.5}]}]
)
def test_mixtures_of_trl_are_recognised(tmp_path: Path, data: dict[str, Any]) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model_name_or_path": "m", **data}))
    with pytest.raises(RecipeError, match="TRL") as caught:
        Recipe.load(tmp_path / "config.yaml")
    assert "--data d" in caught.value.remedy and "data.train.0.weight=0.5" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("rows.jsonl", '{"prompt": "a"}\n{"prompt": "b"}\n', "ascendtune init --model MODEL --data {}, then"),
        ("rows.csv.gz", "\x1f", "ascendtune init --model MODEL --data {}, then"),
        ("rows.json", '\n [{"a": 1}]', "ascendtune init --model MODEL --data {}, then"),
        ("model/config.json", "{}", "ascendtune init --model {} --data DATA, then"),
        ("train.py", "print('a')", "ascendtune launch -- python {}"),
        ("train.sh", "python train.py", "ascendtune launch -- bash {}, which starts it once per device"),
        ("train.sh", "# torchrun\nWORLD=8\nX=1 torchrun \\\n a.py", "bash {}: its torchrun starts the processes"),
        ("train.sh", "python -m torch.distributed.launch a.py", "bash {}: its torch.distributed.launch starts the"),
        ("train.sh", "FOO=1 swift sft \\\n --model m", "in place of `swift`"),
    ],
)
def test_file_that_is_not_a_recipe_is_answered_with_the_command(
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


def test_a_model_and_data_that_the_configuration_lacks_are_in_capitals() -> None:
    assert native_commands({"learning_rate": 1e-4}, "TRL").init == "ascendtune init --model MODEL --data DATA"
