"""The arithmetic of tuners, on single matrices."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch
from peft import OFTConfig
from peft.tuners.oft.layer import Linear

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.method import LoraSection, OftSection
from ascendtune.train.optimizer import parameter_groups, tables_of
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.deepspeed import require_divisible
from ascendtune.train.tuner import frozen_adapters
from ascendtune.train.tuner.freeze import decoder_blocks
from ascendtune.train.tuner.mixtures import bypassed_experts, find_mixtures
from ascendtune.train.tuner.module_use import attributes_read
from ascendtune.train.tuner.targets import adapter_size, linear_modules, short_names


@pytest.mark.parametrize("whole_up_to", [1024, 0])
def test_principal_part_is_the_best_approximation_of_its_rank(monkeypatch, whole_up_to):
    """Of a weight whose singular values are known: by the whole decomposition, and by subspace iteration."""
    monkeypatch.setattr(frozen_adapters, "_WHOLE_UP_TO", whole_up_to)
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(size, 20)).Q for size in (40, 30))
    values = 0.7 ** torch.arange(20.0)
    a, b = frozen_adapters.principal_part((left * values) @ right.T, 4, scale=2.0)
    assert (a.shape, b.shape) == ((4, 30), (40, 4))
    torch.testing.assert_close(2.0 * b @ a, (left[:, :4] * values[:4]) @ right[:, :4].T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inputs", [2, 7, 30, 64, 100, 768, 880])
def test_blocks_are_as_large_as_those_of_peft(inputs: int) -> None:
    for wanted in (2, 3, 8, 10, 32, 48, 100, 5000):
        for key, kind in (("block_size", "oft_block_size"), ("rank", "r")):
            config = OFTConfig(**{"oft_block_size": 0, "r": 0, kind: wanted}, target_modules=["x"])
            with warnings.catch_warnings(action="ignore"):
                layer = Linear(torch.nn.Linear(inputs, 1, device="meta"), "default", config, r=config.r)
            assert OftSection(**{key: wanted}).block_of(inputs) == layer.oft_block_size["default"]


@pytest.mark.parametrize("rank", [5, 40])
def test_sum_of_adapters_is_the_sum_of_their_products(rank):
    torch.manual_seed(0)
    pairs = [(torch.randn(2, 30), torch.randn(20, 2)), (torch.randn(3, 30), torch.randn(20, 3))]
    a, b = frozen_adapters.sum_pairs(pairs, rank)
    assert (a.shape, b.shape) == ((rank, 30), (20, rank))
    torch.testing.assert_close(b @ a, sum(up @ down for down, up in pairs), rtol=1e-5, atol=1e-5)


def test_a_small_difference_leaves_as_small_matrices():
    torch.manual_seed(0)
    a, b = torch.randn(4, 30), torch.randn(20, 4)
    change = 1e-3 * torch.randn(20, 4)
    down, up = frozen_adapters.sum_pairs([(a, b + change), (a, -b)], 8)
    assert max(down.abs().max(), up.abs().max()) < 0.2
    rounded = up.bfloat16().float() @ down.bfloat16().float()
    assert (rounded - change @ a).norm() < 0.01 * (change @ a).norm()


def test_biases_and_norms_do_not_decay():
    names = ["x.lora_A.default.weight", "x.lora_B.default.weight", "norm.weight", "x.lora_B.default.bias", "frozen"]
    shapes = [(2, 4), (4, 2), (4,), (4,), (4, 4)]
    named = [(name, torch.nn.Parameter(torch.zeros(shape))) for name, shape in zip(names, shapes, strict=True)]
    named[-1][1].requires_grad_(False)
    found = {
        name: (group["weight_decay"], group["learning_rate_factor"])
        for group in parameter_groups(named, 0.1, plus_ratio=16.0)
        for name, parameter in named
        if any(parameter is each for each in group["params"])
    }
    assert list(map(found.get, names)) == [(0.1, 1.0), (0.1, 16.0), (0.0, 1.0), (0.0, 16.0), None]
    assert [len(group["params"]) for group in parameter_groups(named, 0.1)] == [2, 2]


@pytest.mark.parametrize(
    ("kind", "vectors"),
    [
        ("cohere", {"layers.0.self_attn.q_norm.weight", "layers.0.self_attn.k_norm.weight"}),
        ("mamba", {"layers.0.mixer.A_log"}),
    ],
)
def test_vectors_of_two_dimensions_neither_decay_nor_are_orthogonalised(kind, vectors):
    """A factor of each head's norm begins at 1, a decay of each state at its own: 0 is nothing that they stand for."""
    from transformers import AutoConfig, AutoModel

    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    more = {"num_attention_heads": 2, "use_qk_norm": True} if kind == "cohere" else {}
    model = AutoModel.from_config(AutoConfig.for_model(kind, **sizes, **more))
    named = dict(model.named_parameters())
    flat = {name for name in vectors if named[name].ndim == 2}
    decaying = {id(each) for group in parameter_groups(named.items(), 0.1) if group["weight_decay"]
                for each in group["params"]}  # fmt: skip
    assert flat == vectors and not any(id(named[name]) in decaying for name in vectors)
    assert {id(named[name]) for name in vectors} <= {id(each) for each in tables_of(model)}
    matrices = {name for name, each in named.items() if each.ndim > 1} - vectors
    assert matrices and all(id(named[name]) in decaying for name in matrices)


def test_norms_that_peft_trains_whole_do_not_decay():
    named = [("model.q_norm.modules_to_save.default.weight", torch.nn.Parameter(torch.ones(2, 4)))]
    assert [group["weight_decay"] for group in parameter_groups(named, 0.1)] == [0.0]


def test_lora_plus_ratio_is_of_b_matrices_of_embeddings_too():
    named = [(f"wte.lora_embedding_{part}.default", torch.nn.Parameter(torch.zeros(2, 2))) for part in "AB"]
    factors = {
        id(each): group["learning_rate_factor"]
        for group in parameter_groups(named, 0.0, 8.0)
        for each in group["params"]
    }
    assert [factors[id(parameter)] for _, parameter in named] == [1.0, 8.0]


def test_blocks_are_not_experts():
    block = torch.nn.Module()
    block.experts = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(8))
    model = torch.nn.ModuleDict({"few": torch.nn.ModuleList([torch.nn.Linear(2, 2)])})
    model["inner"] = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([block, block, block])})
    assert decoder_blocks(model)[0] == "inner.layers"


class Router(torch.nn.Module):
    def __init__(self, experts: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(experts, 32))


class Stacked(torch.nn.Module):
    def __init__(self, experts: int, width: int) -> None:
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.zeros(experts, 2 * width, 32))
        self.down_proj = torch.nn.Parameter(torch.zeros(experts, 32, width))
        self.bias = torch.nn.Parameter(torch.zeros(experts, 32))


def mlp(width: int) -> torch.nn.ModuleDict:
    return torch.nn.ModuleDict({"up": torch.nn.Linear(32, width), "down": torch.nn.Linear(width, 32)})


class Model(torch.nn.Module):
    def __init__(self, **parts: torch.nn.Module) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(8, 32)
        self.layers = torch.nn.ModuleList([torch.nn.ModuleDict({"mlp": torch.nn.ModuleDict(parts)})])

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embed

    def get_output_embeddings(self) -> None:
        return None


@pytest.mark.parametrize("width", [8, 4, 32], ids=["usual", "as wide as experts are many", "as wide as the model"])
def test_stacked_experts_are_found_beside_their_router(width):
    model = Model(gate=Router(4), experts=Stacked(4, width), shared=mlp(width), shared_gate=torch.nn.Linear(32, 1))
    (mixture,) = find_mixtures(model)
    assert mixture.count == 4
    assert mixture.parameters == ("layers.0.mlp.experts.gate_up_proj", "layers.0.mlp.experts.down_proj")
    assert mixture.routers == ("layers.0.mlp.gate", "layers.0.mlp.shared_gate")


@pytest.mark.parametrize(("outputs", "is_bypassed"), [(4, False), (6, True)])
def test_experts_are_bypassed_where_their_router_has_more_outputs(outputs, is_bypassed):
    model = Model(gate=Router(outputs), experts=Stacked(4, 8))
    expected = [model.get_submodule("layers.0.mlp.experts")] if is_bypassed else []
    assert bypassed_experts(model) == expected


def test_dora_counts_a_length_for_each_output() -> None:
    model = Model(up=torch.nn.Linear(32, 8), down=torch.nn.Linear(8, 32))
    plain, dora = (adapter_size(model, LoraSection(rank=2, dora=each)) for each in (False, True))
    assert plain == 2 * 2 * (32 + 8) and dora == plain + 8 + 32


def test_rotations_of_stacked_experts_are_counted_until_they_are_refused() -> None:
    model = Model(gate=Router(4), experts=Stacked(4, 8), shared=mlp(8), shared_gate=torch.nn.Linear(32, 1))
    assert adapter_size(model, OftSection(target=["gate_up_proj"])) == 32 * 31 // 2


def test_experts_that_are_modules_are_found_beside_their_router():
    model = Model(router=torch.nn.Linear(32, 4), experts=torch.nn.ModuleList(mlp(8) for _ in range(4)), shared=mlp(6))
    (mixture,) = find_mixtures(model)
    assert mixture.is_expert("layers.0.mlp.experts.2.up") and not mixture.is_expert("layers.0.mlp.shared.up")
    assert mixture.is_router("layers.0.mlp.router") and mixture.parameters == ()


@pytest.mark.parametrize(
    ("trained", "stage", "ranks", "is_refused"),
    [(True, 1, 2, True), (True, 0, 2, False), (True, 2, 1, False), (False, 2, 2, False), (False, 3, 2, True)],
)
def test_zero_refuses_experts_that_ranks_use_differently(trained, stage, ranks, is_refused):
    model = Model(router=torch.nn.Linear(32, 4), experts=torch.nn.ModuleList(mlp(8) for _ in range(4)), shared=mlp(6))
    precision = Precision("fp32", "fp32", "", "cpu")
    with pytest.raises(RecipeError) if is_refused else nullcontext() as caught:
        require_divisible(model.requires_grad_(trained), precision, stage=stage, ranks=ranks)
    assert caught is None or caught.value.code == "experts-not-divisible"


@pytest.mark.parametrize(
    "parts",
    [
        {"up": torch.nn.Linear(32, 4), "conv": torch.nn.Conv1d(4, 4, 3)},
        {"twins": torch.nn.ModuleList(mlp(8) for _ in range(2)), "mlp": mlp(8)},
        {"experts": Stacked(4, 8), "mlp": mlp(8)},
    ],
    ids=["convolution", "two of a kind", "nothing weighs them"],
)
def test_modules_without_a_router_are_not_a_mixture(parts):
    assert find_mixtures(Model(**parts)) == []


class Reads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.called, self.read, self.asked = (torch.nn.Linear(4, 4) for _ in range(3))
        torch.nn.init.zeros_(self.called.weight)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self.called(hidden.to(self.called.weight.dtype))
        return torch.nn.functional.linear(hidden, self.read.weight) + self.asked.correction


def test_attributes_that_code_reads_of_a_module_are_found():
    model = torch.nn.ModuleDict({"block": Reads()})
    found = {name: set(attributes_read(model, f"block.{name}")) for name in ("called", "read", "asked")}
    assert found == {"called": set(), "read": {"weight"}, "asked": {"correction"}}


def test_names_of_targets_are_as_short_as_they_are_unambiguous():
    every = ["layers.0.attn.q", "layers.1.attn.q", "layers.0.mlp.up", "layers.0.experts.up", "layers.0.mlp"]
    assert short_names(every[:3], every) == ["layers.0.mlp.up", "q"]
    assert short_names(every[2:3], every, parts=2) == ["mlp.up"]


def test_a_linear_class_with_a_forward_of_its_own_is_one_also_where_the_model_has_no_content() -> None:
    """Falcon's; plans and `parallel.strategy: auto` make models on the meta device."""

    class Own(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            product = input @ self.weight.T
            return product if self.bias is None else product + self.bias

    class Twice(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    with torch.device("meta"):
        model = Model(up=Own(32, 8), down=Twice(8, 32))
        found = linear_modules(model)
    assert [name.rpartition(".")[2] for name in found] == ["up"]
