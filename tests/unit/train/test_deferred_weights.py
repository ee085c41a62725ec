"""Weights that are read block by block are those that transformers loads, and never more than a block is undivided."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, GPTJConfig, LlamaConfig, MixtralConfig

from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.method import MethodSection
from ascendtune.recipe.parallel import ParallelSection
from ascendtune.recipe.sections import BatchSection
from ascendtune.train.deferred_weights import DeferredWeights, can_defer, deferred_model
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import RootModule
from ascendtune.train.strategy.fsdp import FsdpStrategy, blocks_of

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
FP32 = Precision("fp32", "fp32", "as asked", "cpu")


def saved(directory: Path, config: Any) -> Path:
    """A random bf16 model in two files."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.generation_config = GenerationConfig(temperature=0.25, do_sample=True)
    model.save_pretrained(directory, max_shard_size=8000)
    return directory


def llama(*, tied: bool) -> LlamaConfig:
    return LlamaConfig(vocab_size=64, num_key_value_heads=1, tie_word_embeddings=tied, **SIZES)


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return saved(tmp_path / "model", llama(tied=request.param))


def deferred(directory: Path, dtype: torch.dtype = torch.float32, vocabulary: int = 64) -> tuple[Any, DeferredWeights]:
    found = find(directory, dtype, vocabulary)
    assert found is not None
    return found


def find(
    directory: Path, dtype: torch.dtype = torch.float32, vocabulary: int = 64
) -> tuple[Any, DeferredWeights] | None:
    config = AutoConfig.from_pretrained(directory)
    return deferred_model(
        AutoModelForCausalLM, directory, config, dtype=dtype, implementation="sdpa", vocabulary=vocabulary
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_filled_model_is_the_one_that_transformers_loads(directory: Path, dtype: torch.dtype) -> None:
    model, weights = deferred(directory, dtype)
    assert all(each.untyped_storage().nbytes() == dtype.itemsize for each in model.parameters())
    weights.fill(model)
    expected = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    of_model, of_expected = model.state_dict(), expected.state_dict()
    assert of_model.keys() == of_expected.keys()
    for name, tensor in of_expected.items():
        assert of_model[name].dtype == dtype and torch.equal(of_model[name], tensor)
    for ours, reference in zip(model.buffers(), expected.buffers(), strict=True):
        assert torch.equal(ours, reference)
    tied = [each.get_input_embeddings().weight is each.get_output_embeddings().weight for each in (model, expected)]
    assert tied[0] == tied[1] == model.config.tie_word_embeddings
    assert model.generation_config.to_dict() == expected.generation_config.to_dict()
    assert model.config.to_dict() == expected.config.to_dict() and model.name_or_path == expected.name_or_path
    ids = torch.tensor([[3, 9, 27]])
    assert torch.equal(model.eval()(ids).logits, expected(ids).logits)


def test_buffers_in_bf16_are_those_that_transformers_computes(tmp_path: Path) -> None:
    """GPT-J divides whole numbers for its positions, which gives numbers of torch's default type."""
    directory = saved(tmp_path, GPTJConfig(vocab_size=64, n_positions=64, n_embd=16, n_layer=1, n_head=2, rotary_dim=8))
    config = AutoConfig.from_pretrained(directory)
    found = deferred_model(
        AutoModelForCausalLM, directory, config, dtype=torch.bfloat16, implementation="eager", vocabulary=64
    )
    assert found is not None
    expected = dict(AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).named_buffers())
    assert expected
    for name, ours in found[0].named_buffers():
        assert ours.dtype == expected[name].dtype and torch.equal(ours, expected[name]), name


@pytest.mark.parametrize(("kind", "is_deferred"), [("youtu", False), ("llama", True)])
def test_class_that_empties_the_padding_row_when_it_loads_is_loaded_whole(
    kind: str, is_deferred: bool, tmp_path: Path
) -> None:
    """On one device transformers reads the weights: with other ones in that row FSDP would train another model."""
    ranks = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
    sizes = SIZES | (ranks if kind == "youtu" else {})
    config = AutoConfig.for_model(kind, vocab_size=64, num_key_value_heads=2, pad_token_id=0, **sizes)
    directory = saved(tmp_path / "model", config)
    for file in directory.glob("*.safetensors"):
        tensors = load_file(file)
        if (table := tensors.get("model.embed_tokens.weight")) is not None:
            table[0] = 1
            save_file(tensors, file, metadata={"format": "pt"})
    row = AutoModelForCausalLM.from_pretrained(directory).get_input_embeddings().weight[0]
    assert bool(row.any()) == (find(directory) is not None) == is_deferred


@pytest.fixture
def fsdp() -> Iterator[FsdpStrategy]:
    recipe: Any = SimpleNamespace(parallel=ParallelSection(), batch=BatchSection(accumulate=1))
    strategy = FsdpStrategy(find_device(), recipe)
    yield strategy
    strategy.close()


def test_block_is_filled_when_those_before_it_have_been_divided(fsdp: FsdpStrategy, directory: Path) -> None:
    model, weights = deferred(directory)
    root = RootModule(model)
    blocks, filled = blocks_of(root), []

    def fill(module: nn.Module) -> None:
        before = len(filled)
        for number, block in enumerate(blocks):
            for parameter in block.parameters():
                assert (
                    isinstance(parameter, DTensor) if number < before else parameter.stride() == (0,) * parameter.ndim
                )
        filled.append(module)
        weights.fill(module)

    fsdp.shard(root, FP32, fill)
    assert filled[: len(blocks)] == blocks
    expected = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).state_dict()
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor) and torch.equal(parameter.full_tensor(), expected[name])


def change_weights(directory: Path, name: str, tensor: torch.Tensor | None) -> None:
    """Put a tensor into the files in place of `name`, or take that away."""
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    file = directory / index["weight_map"].get(name, next(iter(index["weight_map"].values())))
    tensors = {each: value for each, value in load_file(file).items() if each != name}
    index["weight_map"].pop(name, None)
    if tensor is not None:
        tensors[name] = tensor
        index["weight_map"][name] = file.name
    save_file(tensors, file, metadata={"format": "pt"})
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("model.norm.weight", None),
        ("model.norm.weight", torch.ones(17)),
        ("model.norm.weight", torch.ones(16, dtype=torch.int8)),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(4)),
    ],
    ids=["missing", "other shape", "integers", "not a parameter"],
)
def test_model_whose_files_hold_anything_else_is_loaded_whole(
    tmp_path: Path, name: str, tensor: torch.Tensor | None
) -> None:
    directory = saved(tmp_path / "model", llama(tied=False))
    assert find(directory) is not None
    change_weights(directory, name, tensor)
    assert find(directory) is None


def test_config_keeps_the_type_of_the_files(directory: Path) -> None:
    config = AutoConfig.from_pretrained(directory)
    deferred_model(AutoModelForCausalLM, directory, config, dtype=torch.float32, implementation="sdpa", vocabulary=64)
    assert config.dtype == torch.bfloat16


def test_model_with_too_few_rows_or_converted_weights_is_loaded_whole(tmp_path: Path) -> None:
    assert find(saved(tmp_path / "llama", llama(tied=False)), vocabulary=65) is None
    mixture = MixtralConfig(vocab_size=64, num_key_value_heads=1, num_local_experts=2, **SIZES)
    assert find(saved(tmp_path / "mixtral", mixture)) is None


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({}, True),
        ({"tuner": "freeze"}, True),
        ({"tuner": "lora"}, True),
        ({"tuner": "lora", "lora": {"dora": True}}, False),
        ({"tuner": "lora", "lora": {"init": "pissa"}}, False),
        ({"tuner": "lora", "lora": {"modules_to_save": "all-embeddings"}}, False),
        ({"tuner": "lora", "lora": {"start_from": ["adapter"]}}, False),
        ({"tuner": "oft", "oft": {"start_from": ["adapter"]}}, False),
        ({"tuner": "full", "lora": {"start_from": ["adapter"]}}, True),
        ({"stage": "reward"}, False),
    ],
)
def test_tuners_that_take_values_of_weights_need_the_whole_model(section: dict[str, Any], *, expected: bool) -> None:
    assert can_defer(MethodSection(**section)) == expected
