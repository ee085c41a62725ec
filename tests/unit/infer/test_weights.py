"""The directories with the weights of a path, and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from ascendtune.core.errors import InputError
from ascendtune.hub.loaded_weights import resize_embeddings
from ascendtune.infer.engine import find_weights
from ascendtune.infer.transformers_model import _resize_embeddings, _with_adapter


def write_config(directory: Path, name: str, content: dict[str, object]) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_an_adapter_brings_its_base_and_its_own_tokenizer(
    tmp_path: Path, tiny_model: Path, has_tokenizer: bool
) -> None:
    adapter = write_config(
        tmp_path / "adapter", "adapter_config.json",
        {"peft_type": "LORA", "base_model_name_or_path": str(tiny_model), "task_type": "CAUSAL_LM"},
    )  # fmt: skip
    save_file(
        {
            f"base_model.model.model.layers.0.self_attn.q_proj.lora_{part}.weight": torch.zeros(shape)
            for part, shape in (("A", (8, 64)), ("B", (64, 8)))
        },
        adapter / "adapter_model.safetensors",
    )
    if has_tokenizer:
        (adapter / "tokenizer.json").write_text("{}")
    found = find_weights(adapter)
    assert (found.model, found.adapter) == (tiny_model, adapter)
    assert found.tokenizer == (adapter if has_tokenizer else tiny_model)


_TABLES = {"embed_tokens": "model.embed_tokens", "lm_head": "lm_head"}


@pytest.mark.parametrize(
    ("tie", "saved"), [(False, []), (False, ["embed_tokens"]), (False, ["lm_head"]), (True, [])], ids=str
)
def test_new_tokens_without_embeddings_in_the_adapter_are_refused(tie: bool, saved: list[str], tmp_path: Path) -> None:
    """transformers draws those that it adds: the adapter was trained with others."""
    adapter = _adapter_of_new_tokens(tmp_path, saved)
    with pytest.raises(InputError) as caught:
        _resize_embeddings(_network(tie), adapter, 20)
    assert caught.value.code == "adapter-embeddings-missing"


@pytest.mark.parametrize(
    ("tie", "saved"), [(False, ["embed_tokens", "lm_head"]), (True, ["lm_head"]), (True, ["embed_tokens"])], ids=str
)
@pytest.mark.parametrize("inner", ["", ".base_layer", ".token_adapter.base_layer"])
def test_new_tokens_get_the_embeddings_of_the_adapter(tie: bool, saved: list[str], inner: str, tmp_path: Path) -> None:
    network = _network(tie)
    _resize_embeddings(network, _adapter_of_new_tokens(tmp_path, saved, inner), 20)
    assert len(network.get_input_embeddings().weight) == 24, "the table is padded beyond the tokenizer's 20 tokens"


def test_tied_head_of_more_tokens_has_as_many_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """PEFT makes adapters of the size that the head names."""
    network = _network(tie=True)
    resize = network.resize_token_embeddings

    def resized_as_in_5_1(*arguments: Any, **named: Any) -> None:
        resize(*arguments, **named)
        network.lm_head.out_features = 16

    monkeypatch.setattr(network, "resize_token_embeddings", resized_as_in_5_1)
    resize_embeddings(network, 20)
    assert network.lm_head.out_features == len(network.lm_head.weight) == 20


def _network(tie: bool) -> LlamaForCausalLM:
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=16, tie_word_embeddings=tie, **shape))


def _adapter_of_new_tokens(directory: Path, saved: list[str], inner: str = "") -> Path:
    tensors = {f"base_model.model.{_TABLES[name]}{inner}.weight": torch.zeros(24, 8) for name in saved}
    save_file({**tensors, "other": torch.zeros(1)}, directory / "adapter_model.safetensors")
    return directory


def test_type_of_adapter_that_peft_does_not_have_is_refused_with_its_field(tmp_path: Path) -> None:
    adapter = write_config(tmp_path / "adapter", "adapter_config.json", {"peft_type": "NEW", "task_type": "CAUSAL_LM"})
    with pytest.raises(InputError) as caught:
        _with_adapter(_network(tie=False), adapter)
    assert caught.value.code == "invalid-field" and 'peft_type is "NEW"' in caught.value.what


def test_model_directory_is_its_own_tokenizer(tiny_model: Path) -> None:
    found = find_weights(tiny_model)
    assert (found.model, found.adapter, found.tokenizer) == (tiny_model, None, tiny_model)


def test_a_reward_model_is_refused_with_what_it_is_good_for(tmp_path: Path, tiny_model: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    config = json.loads((model / "config.json").read_text())
    write_config(model, "config.json", config | {"architectures": ["Qwen2ForSequenceClassification"]})
    with pytest.raises(InputError) as refused:
        find_weights(model)
    assert refused.value.code == "reward-model-cannot-generate"
    assert refused.value.where == str(model) and f"from_pretrained('{model}')" in refused.value.remedy
    adapter = write_config(tmp_path / "scorer", "adapter_config.json", {"peft_type": "LORA", "task_type": "SEQ_CLS"})
    with pytest.raises(InputError) as refused:
        find_weights(adapter)
    assert refused.value.code == "reward-model-cannot-generate"
    assert f"ascendtune merge {adapter} --to scorer" in refused.value.remedy
