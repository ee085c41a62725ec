"""Bases and adapters to merge: tiny, random, in several files."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


@pytest.fixture(scope="session")
def make_base(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`make_base(tie=True, dtype=torch.bfloat16, files=1)`: a Qwen2 of 512 tokens, hidden 32."""
    made: dict[tuple[Any, ...], Path] = {}

    def make(*, tie: bool = False, dtype: torch.dtype = torch.float32, files: int = 4) -> Path:
        if (tie, dtype, files) in made:
            return made[tie, dtype, files]
        config = Qwen2Config(
            vocab_size=512,
            hidden_size=32,
            intermediate_size=96,
            # The head of one that is not tied fills the fourth file.
            num_hidden_layers=3 if tie else 2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=tie,
            eos_token_id=2,
            pad_token_id=0,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = Qwen2ForCausalLM(config).to(dtype)
        directory = tmp_path_factory.mktemp("base")
        table = model.get_input_embeddings().weight
        model.save_pretrained(directory, max_shard_size=table.nbytes + 512 if files > 1 else "1GB")
        for name in _TOKENIZER:
            shutil.copyfile(tiny_model / name, directory / name)
        assert len(list(directory.glob("*.safetensors"))) == files
        made[tie, dtype, files] = directory
        return directory

    return make


@pytest.fixture
def make_adapter(tmp_path: Path) -> Callable[..., Path]:
    """`make_adapter(base, use_dora=True)`: a PEFT adapter that has moved away from zero."""

    def make(base: Path, name: str = "adapter", **options: Any) -> Path:
        save = {"save_embedding_layers": options.pop("save_embedding_layers", False)}
        settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"], **options}
        with warnings.catch_warnings(action="ignore"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(sum(map(ord, name)))
            model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
            if save["save_embedding_layers"] is True:
                model.resize_token_embeddings(520, mean_resizing=False)
            tuned = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
            for key, each in tuned.named_parameters():
                if each.requires_grad:
                    scale = 0.3 if "magnitude" in key else 0.1
                    each.data += scale * torch.randn_like(each)
            tuned.save_pretrained(tmp_path / name, **save)
        return tmp_path / name

    return make


@pytest.fixture
def peft_merged() -> Callable[..., dict[str, torch.Tensor]]:
    """The state of PEFT's merge_and_unload; with weights of several adapters by its set_scale."""

    def merged(base: Path, *adapters: tuple[Path, float], dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
        with warnings.catch_warnings(action="ignore"):
            model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype or "auto")
            tuned = PeftModel.from_pretrained(model, adapters[0][0], adapter_name="0")
            for number, (path, _) in enumerate(adapters[1:], 1):
                tuned.load_adapter(path, str(number))
            names = [str(number) for number in range(len(adapters))]
            for module in tuned.modules():
                if isinstance(module, LoraLayer):
                    for name, (_, weight) in zip(names, adapters, strict=True):
                        module.set_scale(name, weight)
            return dict(tuned.merge_and_unload(adapter_names=names).state_dict())

    return merged
