"""FSDP on several ranks: each rank has its share of the weights that one device loads, and never more than a block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.integration.train.test_equivalence import SHORT, assert_same
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.method import MethodSection
from ascendtune.recipe.parallel import ParallelSection
from ascendtune.recipe.sections import BatchSection, ModelSection
from ascendtune.train.model import ModelToLoad, apply_tuner, load_deferred, load_model, read_config, set_single_score
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import RootModule
from ascendtune.train.strategy.fsdp import FsdpStrategy, blocks_of
from ascendtune.train.tuner.initial_values import computing_initial_values

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

FP32 = Precision("fp32", "fp32", "as asked", "cpu")
SIZES = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 6,
    "num_attention_heads": 2, "num_key_value_heads": 2, "num_experts": 4, "num_local_experts": 4,
}  # fmt: skip
LORA: dict[str, Any] = {"tuner": "lora"}
CASES: list[tuple[str, dict[str, Any], int]] = [
    ("llama", {}, 128),
    ("llama", {}, 150),
    ("llama", {"stage": "reward"}, 128),
    ("llama", {**LORA, "lora": {"rank": 2, "modules_to_save": "all-embeddings"}}, 128),
    ("mixtral", {**LORA, "lora": {"rank": 2, "dora": True}}, 128),
    ("qwen3_moe", {**LORA, "lora": {"rank": 2, "init": "pissa"}}, 128),
    ("qwen3_moe", {}, 128),
]
"""Model type, `method`, and tokens."""


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_rank_has_its_share_and_a_block_of_what_one_device_loads(
    tmp_path: Path, on_ranks: Callable[..., None], ranks: int
) -> None:
    for kind in {each[0] for each in CASES}:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES), dtype=torch.bfloat16)
        model.save_pretrained(tmp_path / kind, max_shard_size="20KB")
    on_ranks(ranks, partial(_load_cases, tmp_path))


def _load_cases(models: Path) -> None:
    recipe: Any = SimpleNamespace(parallel=ParallelSection(), batch=BatchSection(accumulate=1))
    strategy = FsdpStrategy(find_device(), recipe)
    try:
        for kind, method, vocabulary in CASES:
            _load(strategy, models / kind, MethodSection.model_validate(method), vocabulary)
    finally:
        strategy.close()


def _load(strategy: FsdpStrategy, directory: Path, method: MethodSection, vocabulary: int) -> None:
    section, config = ModelSection(path=str(directory)), AutoConfig.from_pretrained(directory)
    config = read_config(section, directory)
    if method.stage == "reward":
        set_single_score(config, 0)
    wanted = ModelToLoad(section, method.stage, directory, config, FP32, "sdpa", vocabulary, seed=3)
    expected = load_model(wanted)
    torch.manual_seed(3)
    expected = apply_tuner(expected, method)
    found = load_deferred(wanted, copied=False)
    assert found is not None
    model, weights = found
    torch.manual_seed(3)
    tuned = apply_tuner(model, method, (), strategy.fill_on_main)
    made = _held(tuned)
    fill, most = computing_initial_values(tuned, method, weights.fill, strategy.fill_on_main), 0

    def measured(module: nn.Module) -> None:
        nonlocal most
        fill(module)
        most = max(most, _held(tuned))

    root = RootModule(model)
    whole = sum(each.numel() * each.itemsize for each in tuned.parameters())
    blocks = [sum(each.numel() * each.itemsize for each in block.parameters()) for block in blocks_of(root)]
    outside = whole - sum(blocks)
    strategy.shard(root, FP32, measured)
    assert made < 0.2 * whole, "adapters, and a score head"
    # The parts of uneven shards are padded.
    assert most <= 1.1 * (whole / strategy.world_size + max(*blocks, outside)) + made
    if strategy.world_size > 2:
        assert most < 0.8 * whole
    parameters = dict(tuned.named_parameters())
    for name, parameter in expected.named_parameters():
        assert isinstance(ours := parameters[name], DTensor)
        assert torch.equal(ours.full_tensor(), parameter), name


def _held(model: nn.Module) -> int:
    """Bytes of this rank's parameters."""
    local = [each.to_local() if isinstance(each, DTensor) else each for each in model.parameters()]
    return sum({each.data_ptr(): each.untyped_storage().nbytes() for each in local}.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"method": {**LORA, "lora": {"dora": True, "modules_to_save": "all-embeddings"}}},
        {"method": {**LORA, "lora": {"init": "pissa"}}},
        {"model": {"new_tokens": ["<|a|>", "<|b|>"]}},
    ],
    ids=["dora", "pissa", "new tokens"],
)
def test_two_ranks_train_as_one_device(train: Train, train_on_ranks: Train, changes: dict[str, Any]) -> None:
    together = train_on_ranks(2, optim=SHORT, batch={"per_device": 2}, parallel={"strategy": "fsdp"}, **changes)
    assert_same(together, train(optim=SHORT, batch={"per_device": 4}, **changes))
