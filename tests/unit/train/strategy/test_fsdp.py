"""The division of ranks into copies of the model, and the condition for reducing gradients once a step."""

from __future__ import annotations

from contextlib import closing
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from ascendtune.core.errors import MachineError, RecipeError
from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.recipe.parallel import FsdpSection
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.precision import Precision
from ascendtune.train.strategy import fsdp
from ascendtune.train.strategy.base import RootModule
from ascendtune.train.strategy.fsdp import FsdpStrategy, blocks_of, reduces_once, require_copies_on_nodes


def recipe(**keys: Any) -> Recipe:
    return Recipe.check({"model": {"path": "m"}, "data": {"train": "d"}, **keys})


@pytest.mark.parametrize(
    ("replicas", "ranks", "nodes", "shards"),
    [(1, 8, 2, 8), (2, 8, 1, 4), ("nodes", 16, 2, 8), ("nodes", 8, 1, 8), (1, 1, 1, 1)],
)
def test_copies_divide_the_ranks(replicas: Any, ranks: int, nodes: int, shards: int) -> None:
    assert FsdpSection(replicas=replicas).shards(ranks=ranks, nodes=nodes) == shards


@pytest.mark.parametrize(
    ("replicas", "ranks", "nodes", "code"),
    [
        (3, 8, 1, "replicas-unequal"),
        (2, 1, 1, "replicas-unequal"),
        ("nodes", 7, 2, "replicas-unequal"),
        (8, 8, 1, "replicas-not-sharded"),
        ("nodes", 2, 2, "replicas-not-sharded"),
    ],
)
def test_copies_that_cannot_be_are_refused(replicas: Any, ranks: int, nodes: int, code: str) -> None:
    with pytest.raises(RecipeError) as caught:
        FsdpSection(replicas=replicas).shards(ranks=ranks, nodes=nodes)
    assert caught.value.code == code


@pytest.mark.parametrize(("nodes", "shards"), [("0011", 2), ("0000", 2), ("00112233", 4), ("000000", 3)])
def test_copies_within_nodes_or_of_whole_nodes_are_accepted(nodes: str, shards: int) -> None:
    require_copies_on_nodes(list(nodes), shards)


@pytest.mark.parametrize(("nodes", "shards"), [("0101", 2), ("000111", 2), ("0001", 2), ("00011122", 4)])
def test_copies_that_share_a_node_with_parts_of_others_are_refused(nodes: str, shards: int) -> None:
    with pytest.raises(RecipeError) as caught:
        require_copies_on_nodes(list(nodes), shards)
    assert caught.value.code == "replicas-across-nodes"


@pytest.mark.parametrize(
    "parallel",
    [
        {"strategy": "deepspeed", "reduce_dtype": "bf16"},
        {"reduce_dtype": "bf16", "fsdp": {"sync_each_batch": False}},
    ],
)
def test_reduction_in_bf16_is_refused_where_more_would_be_rounded(parallel: dict[str, Any]) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe(parallel=parallel)
    assert caught.value.code == "refused-combination"


class Accelerator(CpuDevice):
    def __init__(self, memory_bytes: int) -> None:
        super().__init__()
        self._memory_bytes = memory_bytes

    @property
    def shares_host_memory(self) -> bool:
        return False

    @property
    def memory_total_bytes(self) -> int:
        return self._memory_bytes


# Two blocks of 5,000 weights, 4 bytes each: two gathered, whole gradients, and on each of 4 ranks a quarter of weights,
# gradients and two moments: 40,000 + 40,000 + 160,000 / 4 bytes, in 70 % of the memory.
FITS = 171_429


@pytest.mark.parametrize(
    ("memory", "keys", "expected"),
    [
        (FITS, {}, True),
        (FITS - 2, {}, False),
        (FITS, {"batch": {"accumulate": 1}}, False),
        (FITS, {"parallel": {"fsdp": {"sync_each_batch": True}}}, False),
        (1, {"parallel": {"fsdp": {"sync_each_batch": False}}}, True),
        (FITS, {"parallel": {"reduce_dtype": "bf16"}}, False),
        (114_286, {"parallel": {"fsdp": {"offload": True}}}, True),
    ],
)
def test_whole_gradients_wait_where_they_fit(memory: int, keys: dict[str, Any], *, expected: bool) -> None:
    asked = recipe(**{"batch": {"accumulate": 2}, **keys})
    model = nn.Sequential(nn.ModuleList(nn.Linear(50, 100, bias=False) for _ in range(2)))
    assert reduces_once(model, asked, Accelerator(memory), shards=4) == expected


def test_on_cpu_gradients_do_not_wait_unless_asked() -> None:
    asked = recipe(batch={"accumulate": 2})
    assert not reduces_once(nn.Linear(2, 2), asked, CpuDevice(), shards=2)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.inner(states).tanh()


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8, 4)
        self.places = nn.Embedding(8, 4)


class NamesItsTable(nn.Module):
    """As BERT's classes, which name their embeddings among the modules that are not split."""

    _no_split_modules = ("Table", "Layer")

    def __init__(self, *, is_tied: bool) -> None:
        super().__init__()
        self.table = Table()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(4, 8, bias=False)
        if is_tied:
            self.head.weight = self.table.words.weight


def test_module_whose_weight_is_tied_to_another_is_not_a_block() -> None:
    tied, untied = NamesItsTable(is_tied=True), NamesItsTable(is_tied=False)
    assert blocks_of(tied) == list(tied.layers)
    assert blocks_of(untied) == [untied.table, *untied.layers]


def test_layers_that_share_their_weights_are_not_blocks() -> None:
    model = NamesItsTable(is_tied=True)
    model.layers[1].inner = model.layers[0].inner
    assert blocks_of(model) == []


class NormedTable(nn.Embedding):
    """As Inkling's: an embedding with a norm in it, whose gradient needs its weight."""

    def __init__(self) -> None:
        super().__init__(8, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.norm(super().forward(input)).square()


class NormsItsTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = NormedTable()
        self.layers = nn.ModuleList([Layer()])

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layers[0](self.table(ids)).square().sum()


def test_embedding_with_a_norm_has_its_gradients() -> None:
    """Without the gathered weight of the norm torch reads freed memory in the backward pass, and the process dies."""
    torch.manual_seed(0)
    alone = NormsItsTable()
    divided = deepcopy(alone)
    ids = torch.tensor([[1, 3, 3]])
    alone(ids).backward()
    with closing(FsdpStrategy(CpuDevice(), recipe())) as strategy:
        root = RootModule(divided)
        strategy.shard(root, Precision("fp32", "fp32", "as asked", "cpu"))
        root(divided, ids).backward()
        for one, other in zip(alone.parameters(), divided.parameters(), strict=True):
            torch.testing.assert_close(strategy.full_gradient(other), one.grad)


def test_torch_whose_gloo_sums_in_place_of_a_mean_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of 2.6 to 2.8 does, without a word: gradients would be as many times too large as there are ranks."""
    name = "reduce_scatter_single" if hasattr(fsdp.dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    monkeypatch.setattr(fsdp.dist, name, lambda mean, ones, op: mean.copy_(2 * ones))
    with pytest.raises(MachineError) as caught:
        FsdpStrategy(CpuDevice(), recipe())
    fsdp.dist.destroy_process_group()
    assert caught.value.code == "package-too-old" and "ddp" in caught.value.remedy


def test_mean_that_is_rounded_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of ten ranks by NCCL, which sums tenths."""
    name = "reduce_scatter_single" if hasattr(fsdp.dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    tenths = sum([torch.full((1,), 0.1)] * 10)
    assert tenths != 1
    monkeypatch.setattr(fsdp.dist, name, lambda mean, ones, op: mean.copy_(tenths))
    FsdpStrategy(CpuDevice(), recipe()).close()


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4, dtype=torch.bfloat16).requires_grad_(False)
        self.adapter = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("may_differ", "base"), [(True, torch.bfloat16), (False, torch.float32)], ids=["torch 2.8", "torch 2.6"]
)
def test_frozen_weights_are_widened_for_a_torch_that_wants_one_type(
    monkeypatch: pytest.MonkeyPatch, *, may_differ: bool, base: torch.dtype
) -> None:
    monkeypatch.setattr(fsdp, "_FROZEN_TYPES_MAY_DIFFER", may_differ)
    model = nn.Sequential(nn.ModuleList([Adapted(), Adapted()]))
    with closing(FsdpStrategy(CpuDevice(), recipe())) as strategy:
        strategy.shard(RootModule(model), Precision("bf16", "bf16", "as asked", "cpu"))
    types = {name.split(".")[2]: each.dtype for name, each in model.named_parameters()}
    assert types == {"base": base, "adapter": torch.float32}


class AdaptedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4, dtype=torch.bfloat16).requires_grad_(False)
        self.layers = nn.ModuleList([Layer()])
        self.head = Adapted()

    def get_input_embeddings(self) -> nn.Module:
        return self.table


def test_table_that_is_gathered_alone_is_not_widened_with_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsdp, "_FROZEN_TYPES_MAY_DIFFER", False)
    model = AdaptedHead()
    with closing(FsdpStrategy(CpuDevice(), recipe())) as strategy:
        strategy.shard(RootModule(model), Precision("bf16", "bf16", "as asked", "cpu"))
    assert model.head.base.weight.dtype == torch.float32
    assert model.table.weight.dtype == torch.bfloat16


def test_norms_of_heads_are_gathered_as_they_are_held() -> None:
    """Cohere's have two dimensions, (heads, width), and are vectors all the same."""
    from transformers import CohereConfig, CohereForCausalLM

    config = CohereConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, use_qk_norm=True
    )
    model = CohereForCausalLM._from_config(config, attn_implementation="eager")
    precision, seen = Precision("bf16", "fp32", "as asked", "cpu"), {}
    attention = model.model.layers[0].self_attn
    with closing(FsdpStrategy(CpuDevice(), recipe())) as strategy:
        root = RootModule(model)
        strategy.shard(root, precision)
        for name, module in (("norm", attention.q_norm), ("projection", attention.q_proj)):
            module.register_forward_pre_hook(
                lambda module, _, name=name: seen.update({name: (module.weight.dtype, module.weight.ndim)})
            )
        with precision.autocast():
            root(model, torch.arange(4)[None])
    assert seen == {"norm": (torch.float32, 2), "projection": (torch.bfloat16, 2)}
