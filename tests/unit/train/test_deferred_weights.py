"""Weights that are read block by block are those that transformers loads, and never more than a block is undivided."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, GPTJConfig, LlamaConfig, modeling_utils

from ascendtune.core.errors import RecipeError
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.method import MethodSection
from ascendtune.recipe.parallel import ParallelSection
from ascendtune.recipe.sections import BatchSection, ModelSection
from ascendtune.train.deferred_weights import DeferredWeights, is_unread, may_defer, move_in_parts, nothing_deferred
from ascendtune.train.model import ModelToLoad, apply_tuner, load_deferred, load_model, read_config, set_single_score
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import RootModule
from ascendtune.train.strategy.fsdp import FsdpStrategy, blocks_of
from ascendtune.train.tuner import frozen_adapters
from ascendtune.train.tuner.frozen_adapters import compute_here
from ascendtune.train.tuner.initial_values import computing_initial_values
from ascendtune.train.unread_tensor import UnreadWeights

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
FP32, BF16 = (Precision("fp32", each, "as asked", "cpu") for each in ("fp32", "bf16"))


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
    directory: Path, dtype: torch.dtype = torch.float32, vocabulary: int = 64, implementation: str = "sdpa"
) -> tuple[Any, DeferredWeights] | None:
    section = ModelSection(path=str(directory))
    config = read_config(section, directory)
    return load_deferred(
        ModelToLoad(section, "sft", directory, config, precision(dtype), implementation, vocabulary, seed=3),
        copied=False,
    )


def precision(dtype: torch.dtype) -> Precision:
    return BF16 if dtype == torch.bfloat16 else FP32


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
    found = find(directory, torch.bfloat16, implementation="eager")
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
    ("name", "tensor", "code"),
    [
        ("model.norm.weight", None, "weights-missing"),
        ("model.norm.weight", torch.ones(17), "weights-config-mismatch"),
        ("model.layers.3.mlp.up_proj.weight", torch.ones(24, 16), "weights-config-mismatch"),
    ],
    ids=["missing", "other shape", "no place"],
)
def test_files_that_do_not_fit_the_model_are_refused(
    tmp_path: Path, name: str, tensor: torch.Tensor | None, code: str
) -> None:
    directory = saved(tmp_path / "model", llama(tied=False))
    change_weights(directory, name, tensor)
    with pytest.raises(RecipeError) as refused:
        find(directory)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("model.norm.weight", torch.arange(16, dtype=torch.int8)),
        ("model.norm.weight", torch.arange(16, dtype=torch.float64)),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(4)),
        ("model.mtp.layers.0.norm.weight", torch.ones(4)),
    ],
    ids=["integers", "fp64", "old buffer", "layer that is not loaded"],
)
def test_files_with_other_types_and_more_tensors_are_loaded_as_by_transformers(
    tmp_path: Path, name: str, tensor: torch.Tensor
) -> None:
    directory = saved(tmp_path / "model", llama(tied=False))
    change_weights(directory, name, tensor)
    require_equal_to_whole(directory)


def test_config_keeps_the_type_of_the_files(directory: Path) -> None:
    section = ModelSection(path=str(directory))
    config = read_config(section, directory)
    load_deferred(ModelToLoad(section, "sft", directory, config, FP32, "sdpa", vocabulary=64, seed=3), copied=False)
    assert config.dtype == torch.bfloat16


@pytest.mark.parametrize("same", [True, False])
def test_tables_that_are_both_in_the_files_are_tied_if_they_are_equal(tmp_path: Path, same: bool) -> None:
    directory = saved(tmp_path / "model", llama(tied=True))
    (file,) = (each for each in directory.glob("*.safetensors") if "model.embed_tokens.weight" in load_file(each))
    table = load_file(file)["model.embed_tokens.weight"]
    change_weights(directory, "lm_head.weight", table.clone() if same else table + 1)
    model, weights = deferred(directory)
    weights.fill(model)
    expected = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    for each in (model, expected):
        assert (each.lm_head.weight is each.get_input_embeddings().weight) == same
    assert torch.equal(model.lm_head.weight, expected.lm_head.weight)


def mixture(kind: str) -> Any:
    """A mixture whose files have a tensor for each expert, and whose model has one for all of them."""
    sizes = {**SIZES, "moe_intermediate_size": 8, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4}
    ranks = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
    groups = {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
    return AutoConfig.for_model(kind, vocab_size=64, num_key_value_heads=2, **sizes, **ranks, **groups)


@pytest.mark.parametrize("stage", ["sft", "reward"])
@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_experts_are_stacked_block_by_block(tmp_path: Path, kind: str, stage: str) -> None:
    directory = saved(tmp_path / "model", mixture(kind))
    stored = {name for file in directory.glob("*.safetensors") for name in load_file(file)}
    assert any("experts.3." in name for name in stored)
    require_equal_to_whole(directory, {"stage": stage})


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "method",
    [
        {},
        {"stage": "reward"},
        {"tuner": "freeze", "freeze": {"last_layers": 1}},
        {"tuner": "lora", "lora": {"rank": 4}},
        {"tuner": "lora", "lora": {"rank": 4, "dora": True, "target": ["q_proj", "embed_tokens"]}},
        {"tuner": "lora", "lora": {"rank": 4, "dora": True, "modules_to_save": "all-embeddings"}},
        {"tuner": "lora", "lora": {"rank": 4, "init": "pissa"}},
        {"tuner": "lora", "lora": {"rank": 4, "modules_to_save": ["embed_tokens", "norm"]}},
        {"tuner": "lora", "stage": "reward", "lora": {"rank": 4, "modules_to_save": ["embed_tokens"]}},
        {"tuner": "oft", "oft": {"block_size": 4, "modules_to_save": "all-embeddings"}},
    ],
    ids=str,
)
def test_tuned_model_is_the_one_that_is_loaded_whole(
    tmp_path: Path, tied: bool, dtype: torch.dtype, method: dict[str, Any]
) -> None:
    """Also with more tokens than the table has: the new rows are the mean of the others."""
    require_equal_to_whole(saved(tmp_path / "model", llama(tied=tied)), method, dtype, vocabulary=70)


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_model_with_code_of_its_own_is_deferred(tmp_path: Path) -> None:
    directory = saved(tmp_path / "model", llama(tied=False))
    (directory / "own.py").write_text(OWN_CODE)
    config = json.loads((directory / "config.json").read_text())
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    (directory / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": classes}))
    require_equal_to_whole(directory, trust_remote_code=True)


@pytest.mark.parametrize("lora", [{}, {"dora": True}, {"modules_to_save": "all-embeddings"}], ids=str)
def test_adapter_that_is_trained_further_is_the_one_over_a_whole_model(tmp_path: Path, lora: dict[str, Any]) -> None:
    directory = saved(tmp_path / "model", llama(tied=False))
    adapters = []
    # Only one adapter may have modules of its own.
    for number in range(1 if "modules_to_save" in lora else 2):
        earlier = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        tuned = apply_tuner(earlier, method_of({"tuner": "lora", "lora": {"rank": 4, **lora}}))
        for each in tuned.parameters():
            if each.requires_grad:
                nn.init.normal_(each)
        tuned.save_pretrained(tmp_path / f"adapter-{number}")
        adapters.append(tmp_path / f"adapter-{number}")
    method = {"tuner": "lora", "lora": {"start_from": [str(each) for each in adapters]}}
    require_equal_to_whole(directory, method, adapters=adapters)


def test_order_in_which_modules_are_filled_has_no_effect_on_pissa(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger matrices are decomposed with random numbers."""
    monkeypatch.setattr(frozen_adapters, "_WHOLE_UP_TO", 1)
    method = {"tuner": "lora", "lora": {"rank": 4, "init": "pissa"}}
    require_equal_to_whole(saved(tmp_path / "model", llama(tied=False)), method)


def method_of(section: dict[str, Any]) -> MethodSection:
    return MethodSection.model_validate(section)


def require_equal_to_whole(
    directory: Path, method: dict[str, Any] | None = None, dtype: torch.dtype = torch.float32, vocabulary: int = 64,
    adapters: Sequence[Path] = (), **keys: Any,
) -> None:  # fmt: skip
    """Fill a deferred model block by block, from the last one on, and compare it with the one that is loaded whole.

    Args:
        keys: of the recipe's `model`.
    """
    section, method_section = ModelSection(path=str(directory), **keys), method_of(method or {})
    reward = method_section.stage == "reward"
    tuned, fills = [], []
    for load, options in ((load_model, {}), (load_deferred, {"copied": False})):
        config = read_config(section, directory)
        if reward:
            set_single_score(config, 0)
        wanted = ModelToLoad(
            section, method_section.stage, directory, config, precision(dtype), "sdpa", vocabulary, seed=3
        )
        loaded: Any = load(wanted, **options)
        model, fill = (loaded[0], loaded[1].fill) if options else (loaded, nothing_deferred)
        torch.manual_seed(4)
        tuned.append(apply_tuner(model, method_section, adapters))
        fills.append(computing_initial_values(tuned[-1], method_section, fill, compute_here))
    whole, ours = tuned
    unread = [each for each in ours.parameters() if is_unread(each)]
    assert all(each.untyped_storage().nbytes() == each.itemsize for each in unread)
    stored = {each for each in ours.parameters() if not each.requires_grad or method_section.adapter is None}
    assert stored <= {*unread, *(each for name, each in ours.named_parameters() if "score" in name or "lora" in name)}
    for block in reversed(blocks_of(RootModule(ours))):
        fills[1](block)
    fills[1](ours)
    expected, found = ({**dict(each.named_parameters()), **dict(each.named_buffers())} for each in tuned)
    assert list(expected) == list(found)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
        assert found[name].requires_grad == tensor.requires_grad, name
    for ours_of, expected_of in zip(getattr(ours, "frozen_pairs", []), getattr(whole, "frozen_pairs", []), strict=True):
        assert ours_of.keys() == expected_of.keys()
        for layer, pair in expected_of.items():
            assert all(map(torch.equal, ours_of[layer], pair)), layer


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_model_that_is_moved_to_a_device_takes_host_memory_for_one_module(tmp_path: Path, kind: str) -> None:
    config: Any = llama(tied=False) if kind == "llama" else mixture(kind)
    model, weights = deferred(saved(tmp_path / "model", config))
    own = [sum(each.numel() * each.itemsize for each in module.parameters(recurse=False)) for module in model.modules()]
    largest, most = max(own), 0

    def fill(module: nn.Module) -> None:
        nonlocal most
        weights.fill(module)
        on_host = {each.data_ptr(): each for each in model.parameters() if not each.is_meta}
        most = max(most, sum(each.untyped_storage().nbytes() for each in on_host.values() if not is_unread(each)))

    move_in_parts(model, fill, torch.device("meta"))
    assert 0 < most <= largest
    assert all(each.is_meta for each in (*model.parameters(), *model.buffers()))


def test_random_weights_and_new_layers_are_made_whole() -> None:
    assert may_defer(ModelSection(path="model"))
    assert not may_defer(ModelSection(path="model", init="random"))
    assert not may_defer(ModelSection(path="model", new_layers=2))


def assign(tensor: torch.Tensor) -> torch.Tensor:
    taken = tensor + 1
    tensor.data = torch.nn.functional.pad(tensor.data, (0, 1))
    return tensor * 2 + torch.ones(3).sum() + taken.sum()


def draw(tensor: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(5)
    return tensor * torch.empty_like(tensor).uniform_() + torch.arange(3)


@pytest.mark.parametrize(
    "operation", [torch.Tensor.sum, torch.Tensor.t, lambda each: torch.stack([each, each])[1, 0], assign, draw]
)
def test_unread_tensor_computes_what_the_tensor_computes(tmp_path: Path, operation: Any) -> None:
    save_file({"a": torch.arange(6.0).view(2, 3)}, tmp_path / "model.safetensors")
    weights = UnreadWeights(tmp_path)
    with weights.in_place_of_files(), modeling_utils.safe_open(tmp_path / "model.safetensors") as file:
        unread = operation(file.get_slice("a")[...])
    expected = operation(torch.arange(6.0).view(2, 3))
    assert unread.shape == expected.shape and unread.device.type == "cpu"
    with weights.open() as read:
        assert torch.equal(unread.compute(read), expected) and not weights.values_needed


@pytest.mark.parametrize(
    "operation", [lambda each: each.zero_(), lambda each: each[0].add_(1), lambda each: torch.zeros(2, 3).copy_(each)]
)
def test_operation_that_changes_values_is_noticed(tmp_path: Path, operation: Any) -> None:
    save_file({"a": torch.ones(2, 3)}, tmp_path / "model.safetensors")
    weights = UnreadWeights(tmp_path)
    with weights.in_place_of_files(), modeling_utils.safe_open(tmp_path / "model.safetensors") as file:
        unread = file.get_slice("a")[...]
    unread.requires_grad_(False)
    assert not weights.values_needed
    with suppress(RuntimeError):
        operation(unread)
    assert weights.values_needed
