from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from ascendtune.core.errors import MachineError
from ascendtune.core.rundir import RunDir
from ascendtune.data.template import template_source
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.hub.adapter_files import check_adapter
from ascendtune.infer.engine import Weights
from ascendtune.infer.transformers_model import TransformersModel
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.method import MethodSection
from ascendtune.recipe.sections import CheckpointSection
from ascendtune.train.checkpoint.checkpointer import require_space_for_run
from ascendtune.train.export import export_model, exported_bytes
from ascendtune.train.model import apply_tuner
from ascendtune.train.tuner.frozen_adapters import TRAINED

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("checkpoints", "keep", "said", "lower"),
    [(0, 2, "(a model of ", False), (9, 2, "(3 checkpoints of ", True), (9, 1, "(2 checkpoints of ", False)],
)
def test_remedy_for_a_full_disk_names_keep_only_where_it_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoints: int, keep: int, said: str, lower: bool
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, 0))
    section = CheckpointSection(keep=keep)
    with pytest.raises(MachineError) as caught:
        require_space_for_run(RunDir(tmp_path), section, checkpoint=9, model=3, written=checkpoints)
    assert said in caught.value.what and ("lower checkpoint.keep" in caught.value.remedy) is lower


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("No space left on device (os error 28)", "disk-full"),
        ("Disk quota exceeded (os error 122)", "disk-quota-exceeded"),
        ("File too large (os error 27)", "file-too-large"),
    ],
)
def test_fault_of_the_disk_that_safetensors_words_is_named(tmp_path: Path, said: str, code: str) -> None:
    class Model(nn.Linear):
        def save_pretrained(self, directory: Path) -> None:
            directory.mkdir(exist_ok=True)
            raise SafetensorError(f"Error while serializing: I/O error: {said}")

    tokenizer: Any = None
    with pytest.raises(MachineError) as caught:
        export_model(Model(8, 8), tokenizer, tmp_path / "model", "", new_tokens=False)
    assert caught.value.code == code and caught.value.where == str(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("target", [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"], ["q_proj"]], ids=str)
def test_embeddings_of_new_tokens_are_exported_whatever_has_a_lora(
    target: list[str], tie: bool, tiny_model: Path, tmp_path: Path
) -> None:
    """PEFT leaves out the other table where one has a LoRA."""
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=512, tie_word_embeddings=tie, **shape))
    base.save_pretrained(tmp_path / "base")
    tokenizer = Tokenizer.load(tiny_model, ["<new>"])
    model = LlamaForCausalLM.from_pretrained(tmp_path / "base")
    model.resize_token_embeddings(513, mean_resizing=False)
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=target, init_lora_weights=False)
    tuned = get_peft_model(model, config, adapter_name=TRAINED).eval()
    export_model(tuned, tokenizer, tmp_path / "adapter", "", new_tokens=True)
    check_adapter(tmp_path / "adapter", tmp_path / "base")
    loaded = TransformersModel.load(Weights(tmp_path / "base", tmp_path / "adapter"), find_device(), vocabulary=513)
    ids = torch.tensor([[3, 512, 7]])
    with torch.inference_mode():
        assert torch.equal(loaded.model.cpu()(ids).logits, tuned(ids).logits)


@pytest.mark.parametrize("target", [["q_proj", "down_proj"], ["all-linear"]], ids=str)
@pytest.mark.parametrize("init", ["zero", "pissa"])
def test_bytes_of_an_adapter_are_those_that_are_written(
    init: str, target: list[str], tiny_model: Path, tmp_path: Path
) -> None:
    """Of PiSSA the file has twice the rank: the adapter and what takes its start away."""
    shape = {"hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=512, **shape))
    method = MethodSection.model_validate({"tuner": "lora", "lora": {"rank": 6, "init": init, "target": target}})
    tuned = apply_tuner(model, method)
    expected = exported_bytes(tuned, False, torch.float32)
    assert expected == exported_bytes(tuned, False)
    export_model(tuned, Tokenizer.load(tiny_model), tmp_path / "model", "", new_tokens=False)
    with safe_open(tmp_path / "model" / "adapter_model.safetensors", "pt") as opened:
        written = sum(opened.get_tensor(name).nbytes for name in opened.keys())  # noqa: SIM118  # no dictionary
    assert written == expected


def test_exported_model_stops_at_the_end_of_a_turn_elsewhere(tiny_model: Path, tmp_path: Path) -> None:
    """A base model names its end of text alone, and transformers and vLLM know no other."""
    tokenizer = Tokenizer.load(tiny_model)
    turn_end = tokenizer.id_of("<|im_end|>")
    assert turn_end is not None
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            eos_token_id=turn_end + 1,
        )
    )
    export_model(model, tokenizer, tmp_path / "model", template_source("chatml", tokenizer), new_tokens=False)
    assert GenerationConfig.from_pretrained(tmp_path / "model").eos_token_id == [turn_end + 1, turn_end]
