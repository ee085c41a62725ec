"""Which directories hold the weights of a path, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ascendtune.core.errors import InputError
from ascendtune.infer.engine import find_weights


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
