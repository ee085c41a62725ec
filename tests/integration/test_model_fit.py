"""No reader drops, draws or fetches weights in silence: files and config must describe one model."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ascendtune.cli.main import main
from ascendtune.core.errors import AscendtuneError, RecipeError
from ascendtune.infer.engine import load as load_engine
from ascendtune.merge.merge import merge
from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import ModelSection
from ascendtune.train.attention.interface import register
from ascendtune.train.model import ModelToLoad, load_model, read_config
from ascendtune.train.precision import Precision
from ascendtune.train.prepare import prepare_run

Change = Callable[[Path], Any]


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return shutil.copytree(tiny_model, tmp_path / "model")


def configure(**changes: Any) -> Change:
    def change(model: Path) -> None:
        path = model / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def rename(old: str, new: str | None) -> Change:
    """Rename or remove tensors of the file."""

    def change(model: Path) -> None:
        path = model / "model.safetensors"
        tensors = load_file(path)
        kept = {
            name.replace(old, new or ""): each for name, each in tensors.items() if new is not None or old not in name
        }
        assert kept.keys() != tensors.keys()
        save_file(kept, path, metadata={"format": "pt"})

    return change


def add(**tensors: torch.Tensor) -> Change:
    def change(model: Path) -> None:
        path = model / "model.safetensors"
        save_file({**load_file(path), **tensors}, path, metadata={"format": "pt"})

    return change


def _prepare(model: Path) -> None:
    _start(model, {})


def _start(model: Path, method: dict[str, Any]) -> Any:
    rows = model.parent / "rows.json"
    chosen, rejected = "Paris, of course.", "London."
    pair = {"prompt": "What?", "chosen": chosen, "rejected": rejected}
    plain = {"instruction": "What?", "output": chosen}
    rows.write_text(json.dumps([pair if method.get("stage") in ("reward", "preference") else plain] * 4))
    values = {
        "model": {"path": str(model)},
        "data": {"train": str(rows), "max_length": 64},
        "method": method,
        "optim": {"max_steps": 1},
        "run_dir": str(model.parent / "runs/{name}"),
    }
    return prepare_run(Recipe.check(values), {})


def _load(model: Path, stage: str = "sft") -> Any:
    section = ModelSection(path=str(model))
    config = read_config(section, model)
    precision = Precision("fp32", "fp32", "", "cpu")
    return load_model(ModelToLoad(section, stage, model, config, precision, register("sdpa"), vocabulary=0, seed=0))


_READERS: dict[str, Callable[[Path], Any]] = {
    "train": _prepare,
    "load": _load,
    "generate": lambda model: load_engine(model),
    "reference": lambda model: _start(
        model.parent / "policy", {"stage": "preference", "preference": {"reference": str(model)}}
    ),
    "merge": lambda model: merge([str(model.parent / "adapter")], model.parent / "merged", onto=str(model)),
}

_BEFORE_TORCH: dict[str, tuple[Change, str]] = {
    "fewer layers": (configure(num_hidden_layers=1, layer_types=None), "num_hidden_layers is 1.*contain 2 layers"),
    "more layers": (configure(num_hidden_layers=3, layer_types=None), "num_hidden_layers is 3.*contain 2 layers"),
    "-1 layers": (configure(num_hidden_layers=-1), "num_hidden_layers is -1"),
    "no heads": (configure(num_attention_heads=0), "num_attention_heads is 0"),
    "text": (configure(hidden_size="64"), 'hidden_size is "64"'),
    "vocabulary": (configure(vocab_size=511), "vocab_size is 511"),
    "quantised": (configure(quantization_config={"quant_method": "mxfp4"}), r"quantised \(mxfp4\)"),
}


@pytest.fixture
def adapter(tiny_model: Path, tmp_path: Path) -> Path:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    tuned = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "down_proj"]))
    for name, weight in tuned.named_parameters():
        if "lora_B" in name:
            weight.data += 0.1
    tuned.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize("reader", [name for name in _READERS if name != "load"])
@pytest.mark.parametrize("damage", _BEFORE_TORCH)
def test_contradiction_is_refused_by_every_reader(
    damage: str, reader: str, model: Path, tiny_model: Path, adapter: Path
) -> None:
    shutil.copytree(tiny_model, model.parent / "policy")
    change, said = _BEFORE_TORCH[damage]
    change(model)
    with pytest.raises(AscendtuneError, match=said) as raised:
        _READERS[reader](model)
    assert raised.value.exit_code == 2 and raised.value.remedy and str(model) in str(raised.value.where)


_WHILE_LOADING: dict[str, tuple[Change, str]] = {
    "surplus weight": (
        add(**{"model.layers.0.mlp.extra.weight": torch.zeros(2)}),
        "1 weight of the files has no place .*model.layers.0.mlp.extra.weight",
    ),
    "missing weight": (rename("norm.weight", None), "weights are missing from the files: .*layernorm.weight"),
    "renamed weight": (
        rename("q_proj", "query"),
        "missing from the files: model.layers.0.self_attn.q_proj|which the base does not have",
    ),
    "other width": (configure(intermediate_size=170), r"other shapes .*\[64, 176\] in the files and \[64, 170\]"),
    "reward model": (add(**{"score.weight": torch.zeros(1, 64)}), "has no place .*score.weight"),
}


@pytest.mark.parametrize("reader", ["load", "generate", "merge"])
@pytest.mark.parametrize("damage", _WHILE_LOADING)
@pytest.mark.usefixtures("adapter")
def test_every_weight_of_files_and_model_is_compared(damage: str, reader: str, model: Path) -> None:
    change, said = _WHILE_LOADING[damage]
    change(model)
    with pytest.raises(AscendtuneError, match=said):
        _READERS[reader](model)
    assert not (model.parent / "merged").exists()


@pytest.mark.parametrize(
    "change",
    [
        add(**{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}),
        add(**{"mtp.layers.0.weight": torch.zeros(8)}),
        configure(use_cache=False),
    ],
    ids=["rotary", "multi-token prediction", "sound"],
)
def test_weights_known_to_be_harmless_are_accepted(change: Change, model: Path) -> None:
    change(model)
    _load(model)
    load_engine(model)


def test_weights_of_multi_token_prediction_are_left_out_with_a_message(
    model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("ascendtune")
    monkeypatch.setattr(logger, "propagate", True)
    # What other tests have left there; the message would be noted twice.
    monkeypatch.setattr(logger, "handlers", [])
    _load(model)
    assert "multi-token" not in caplog.text
    add(**{"mtp.layers.0.weight": torch.zeros(8), "mtp.norm.weight": torch.zeros(8)})(model)
    _load(model)
    said = "2 weights of layers for multi-token prediction (MTP) are not loaded"
    assert sum(message.startswith(said) for message in caplog.messages) == 1


def test_reward_model_begins_with_a_score_and_without_a_head(model: Path) -> None:
    add(**{"lm_head.weight": torch.zeros(512, 64)})(model)
    assert _load(model, "reward").score.weight.shape[0] >= 1
    rename("down_proj", "down")(model)
    with pytest.raises(RecipeError) as caught:
        _load(model, "reward")
    assert caught.value.code == "weights-missing"


def _rewrite(adapter: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    path = adapter / "adapter_model.safetensors"
    save_file({name: each.contiguous() for name, each in change(load_file(path)).items()}, path)


_ADAPTERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "other rank": (
        lambda adapter: _rewrite(
            adapter, lambda all: {name: torch.cat([each] * 2, int("_B." in name)) for name, each in all.items()}
        ),
        "says that r is 2|of rank 2",
    ),
    "other width": (
        lambda adapter: _rewrite(
            adapter, lambda all: {name: each[:, :32] if "_A." in name else each for name, each in all.items()}
        ),
        "the adapter was made for",
    ),
    "other names": (
        lambda adapter: _rewrite(
            adapter, lambda all: {name.replace("layers", "blocks"): each for name, each in all.items()}
        ),
        "none of the modules of the adapter|which the base does not have|its file has no|have no place",
    ),
    "one other name": (
        lambda adapter: _rewrite(
            adapter, lambda all: {name.replace("1.mlp.down_proj", "1.mlp.extra"): each for name, each in all.items()}
        ),
        "no place in the base model: .*1.mlp.extra|which the base does not have|has no .*1.mlp.down_proj",
    ),
}


@pytest.mark.parametrize("reader", ["train", "generate", "merge"])
@pytest.mark.parametrize("damage", _ADAPTERS)
def test_adapter_of_another_base_is_refused(
    damage: str, reader: str, model: Path, adapter: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from ascendtune.train.model import apply_tuner

    spoil, said = _ADAPTERS[damage]
    spoil(adapter)
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": str(model)}))
    method = {"tuner": "lora", "lora": {"start_from": [str(adapter)]}}
    with pytest.raises(AscendtuneError, match=said):
        if reader == "generate":
            load_engine(adapter)
        elif reader == "merge":
            merge([str(adapter)], model.parent / "merged")
        else:
            _start(model, method)
            apply_tuner(
                _load(model),
                Recipe.check({"model": {"path": "x"}, "data": {"train": "x"}, "method": method}).method,
                [adapter],
            )


_KERNELS = {
    "_attn_implementation": "kernels-community/flash-attn3",
    "attn_implementation": "someone/else",
    "experts_implementation": "sonicmoe",
    "_experts_implementation": "deepgemm",
    "use_kernels": True,
    "kernel_config": {"RMSNorm": "someone/else:RMSNorm"},
    "trust_remote_code": True,
    "processor_class": "EvilProcessor",
}


@pytest.mark.parametrize("key", _KERNELS)
def test_kernels_that_a_config_names_are_never_fetched(
    key: str, model: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training, a reference model, generation and the verification of a merge."""
    from transformers.integrations import hub_kernels

    def fetched(name: str, *_: Any, **__: Any) -> None:
        raise AssertionError(f"{name} was asked for")

    for name in ("get_kernel", "load_and_register_attn_kernel", "lazy_load_kernel"):
        monkeypatch.setattr(hub_kernels, name, fetched)
    monkeypatch.setattr(f"{hub_kernels.__name__}.is_kernels_available", lambda: True, raising=False)
    configure(**{key: _KERNELS[key]})(model)
    trained = _load(model)
    assert trained.config._attn_implementation == register("sdpa")
    asked = load_engine(model).model.model.config
    assert "/" not in str(asked._attn_implementation)
    merged = merge([str(adapter)], model.parent / "merged", onto=str(model))
    assert merged.verification is not None, merged.notes


def test_tokenizer_of_a_model_runs_no_code(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model / "tokenizer_config.json"
    code = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}, "tokenizer_class": "Evil"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **code}))
    (model / "evil.py").write_text("raise SystemExit('ran')")
    monkeypatch.chdir(model)
    _prepare(model)
    load_engine(model)
    assert "evil" not in sys.modules


def test_recipe_check_names_the_field_without_torch(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(num_hidden_layers=1, layer_types=None)(model)
    recipe = model.parent / "r.yaml"
    (model.parent / "rows.json").write_text('[{"instruction": "a", "output": "b"}]')
    recipe.write_text(f"model: {{path: {model}}}\ndata: {{train: {model.parent / 'rows.json'}}}\n")
    with pytest.raises(SystemExit) as ended:
        main(["recipe", "check", str(recipe)])
    assert ended.value.code == 2
    assert "num_hidden_layers is 1, and the weight files contain 2 layers" in capsys.readouterr().err
