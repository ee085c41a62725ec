"""Experts of a mixture as grouped matrix products: found in every family, tested before use, taken out when wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ascendtune.core.units import count_of
from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.train.kernel import install
from ascendtune.train.kernel.experts import find_experts, grouped_mm, multiply_by_group
from ascendtune.train.kernel.install import install_kernels
from ascendtune.train.precision import Precision

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

CALLS: list[int] = []
OWN = "the model's own"
FP32 = Precision("fp32", "fp32", "", "cpu")
BF16 = Precision("bf16", "bf16", "", "cpu")
SHAPE: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "num_experts_per_tok": 2,
}  # fmt: skip
MLA = {
    "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4, "first_k_dense_replace": 1,
}  # fmt: skip
# config class, what differs from SHAPE, in how many of two layers experts are found.
FAMILIES: list[tuple[str, dict[str, Any], int]] = [
    ("Qwen2MoeConfig", {"num_experts": 4, "shared_expert_intermediate_size": 24}, 2),
    ("Qwen3MoeConfig", {"num_experts": 12}, 2),  # more than are tried
    ("Qwen3MoeConfig", {"num_experts": 4, "experts_implementation": "eager"}, 2),
    ("MixtralConfig", {"num_local_experts": 4}, 2),
    ("OlmoeConfig", {"num_experts": 4, "num_experts_per_tok": 3}, 2),
    ("DeepseekV3Config", MLA, 1),  # the first layer is dense
    ("Glm4MoeConfig", {**MLA, "num_key_value_heads": 2}, 1),
    ("GptOssConfig", {"num_local_experts": 4}, 2),  # has biases, gate and up alternate
    ("GptOssConfig", {"num_local_experts": 6, "hidden_size": 48, "experts_implementation": "eager"}, 2),
    ("Qwen3Config", {}, 0),
]


def installed(*arguments: Any) -> dict[str, str]:
    """What `install_kernels` says of each part."""
    return {part: choice.description for part, choice in install_kernels(*arguments).items()}


def grouped(rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    CALLS.append(len(rows))
    assert rows.dtype == weight.dtype and counts.dtype == torch.int64
    return multiply_by_group(rows, weight, counts)


def of_another_expert(rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    return grouped(rows, weight.roll(1, dims=0), counts)


def without_a_gradient(rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    return grouped(rows, weight.detach() + 0 * weight, counts)


def that_fails(*arguments: Any) -> Any:
    raise RuntimeError("aclnnGroupedMatmulV5 is not supported\nand more")


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`kernel(that_fails)`: the CPU has this operator for experts, a right one where nothing else is said."""
    CALLS.clear()
    monkeypatch.setattr(CpuDevice, "kernels", "plain")

    def choose(function: Callable[..., Any]) -> None:
        monkeypatch.setitem(install.TABLE, "plain", {"experts": "plain"})
        monkeypatch.setattr(install, "resolve_name", lambda name: function)

    choose(grouped)
    return choose


def model_of(name: str, changes: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    import transformers

    values = {**SHAPE, **changes}
    implementation = values.pop("experts_implementation", None)
    config = getattr(transformers, name)(**values)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, **({"experts_implementation": implementation} if implementation else {})
        )


def loss_and_gradients(model: Any, precision: Precision) -> tuple[float, dict[str, torch.Tensor]]:
    ids = torch.arange(3, 43)[None] * 7 % 512
    model.train().zero_grad()
    with precision.autocast():
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    return loss.item(), {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def assert_same_gradients(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        assert (ours[name] - expected).norm() <= tolerance * expected.norm() + 1e-9, name


@pytest.mark.parametrize(
    ("name", "changes", "layers"), FAMILIES, ids=[f"{each[0][:-6]}-{number}" for number, each in enumerate(FAMILIES)]
)
def test_experts_are_found_in_each_family_and_agree(name: str, changes: dict[str, Any], layers: int) -> None:
    model = model_of(name, changes)
    before = loss_and_gradients(model, FP32)
    outcome = installed(model, "auto", find_device(), FP32)
    expected = f"{layers} of {count_of(layers, 'module')}, grouped" if layers else f"{OWN}: nothing of this form in it"
    assert outcome["experts"] == expected
    CALLS.clear()
    after = loss_and_gradients(model, FP32)
    assert [40 * model.config.num_experts_per_tok] * 2 * layers == CALLS
    assert after[0] == pytest.approx(before[0], rel=1e-6)
    assert_same_gradients(after[1], before[1], 1e-5)


@pytest.mark.parametrize(
    ("family", "changes"), [("Qwen3Moe", {"num_experts": 4}), ("GptOss", {"num_local_experts": 4})]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32 weights", "bf16 weights"])
def test_under_autocast_products_are_in_its_type(
    kernel: Callable[..., None], dtype: torch.dtype, family: str, changes: dict[str, int]
) -> None:
    types: set[torch.dtype] = set()

    def watched(rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        types.add(rows.dtype)
        return grouped(rows, weight, counts)

    kernel(watched)
    model = model_of(f"{family}Config", changes, dtype)
    before = loss_and_gradients(model, BF16)
    assert installed(model, "auto", find_device(), BF16)["experts"] == "2 of 2 modules, watched"
    after = loss_and_gradients(model, BF16)
    assert types == {torch.bfloat16}
    assert after[0] == pytest.approx(before[0], rel=5e-3)
    experts = {name: grad for name, grad in before[1].items() if "experts" in name}
    assert_same_gradients({name: after[1][name] for name in experts}, experts, 0.1)


@pytest.mark.parametrize("precision", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (of_another_expert, "output 0 ("),
        (without_a_gradient, "gradient 2 ("),
        (that_fails, "fails: aclnnGroupedMatmulV5 is not supported"),
    ],
)
def test_a_wrong_kernel_is_found_and_taken_out(
    kernel: Callable[..., None], caplog: pytest.LogCaptureFixture,
    wrong: Callable[..., Any], said: str, precision: Precision,
) -> None:  # fmt: skip
    kernel(wrong)
    model = model_of("Qwen2MoeConfig", FAMILIES[0][1])
    before = loss_and_gradients(model, FP32)
    outcome = installed(model, "auto", find_device(), precision)["experts"]
    assert outcome.startswith(f"{OWN}: {wrong.__name__}") and said in outcome
    assert f"kernel.experts: {wrong.__name__} is not used" in caplog.text
    after = loss_and_gradients(model, FP32)
    assert after[0] == before[0]
    assert_same_gradients(after[1], before[1], 0.0)


def test_experts_that_compute_something_else_are_left_alone() -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_experts = 4
            self.gate_up_proj = nn.Parameter(torch.randn(4, 16, 6))
            self.down_proj = nn.Parameter(torch.randn(4, 6, 8))
            self.act_fn = nn.SiLU()

        def forward(self, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            output = torch.zeros_like(hidden)
            for expert in range(self.num_experts):
                gate, up = (hidden @ self.gate_up_proj[expert].T).chunk(2, -1)
                share = (weights * (index == expert)).sum(-1, keepdim=True)
                output = output + share * ((self.act_fn(gate) * up) @ self.down_proj[expert].T)
            return self.factor * output

        factor = 2.0

    class Plain(Doubled):
        factor = 1.0

    class Turned(Plain):
        """As Llama and GPT-OSS store them."""

        def __init__(self) -> None:
            super().__init__()
            self.gate_up_proj = nn.Parameter(torch.randn(4, 6, 16))

    model, device = nn.ModuleList([Doubled(), Plain(), Turned()]), torch.device("cpu")
    assert [each.module for each in find_experts(model, device)] == [model[1]]


def test_grouped_mm_of_torch_is_used_and_agrees(kernel: Callable[..., None]) -> None:
    """What CUDA gets; here on the CPU, where torch has it too."""
    kernel(grouped_mm)
    model = model_of("Qwen3MoeConfig", {"num_experts": 4})
    before = loss_and_gradients(model, FP32)
    assert installed(model, "auto", find_device(), FP32)["experts"] == "2 of 2 modules, grouped_mm"
    assert_same_gradients(loss_and_gradients(model, FP32)[1], before[1], 1e-5)


@pytest.mark.parametrize(
    ("family", "changes"), [("Qwen3Moe", {"num_experts": 4}), ("GptOss", {"num_local_experts": 4})]
)
def test_nothing_waits_for_the_device(family: str, changes: dict[str, int]) -> None:
    """What reads a number back, or makes a tensor of a size that the device knows, stops the host until it is there."""
    waits = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "bincount", "equal", "to another device"}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
            named = named or {}
            seen.add(function.overloadpacket.__name__)
            if function.overloadpacket.__name__ == "_to_copy" and named.get("device") is not None:
                seen.add("to another device")
            return function(*arguments, **named)

    seen: set[str] = set()
    (experts, *_) = find_experts(model_of(f"{family}Config", changes), torch.device("cpu"))
    samples = experts.samples(torch.device("cpu"), torch.float32)
    experts.replace_forward(lambda rows, weight, counts: (rows @ weight[0]) * counts.sum())
    with Watch():
        (output,) = experts.run(*samples)
        output.sum().backward()
    assert "index_select" in seen and not seen & waits


@pytest.mark.parametrize("ranks", [1, 2])
def test_run_json_names_the_kernel_of_experts(
    train: Train, train_on_ranks: Train, variant: Callable[..., Path], ranks: int
) -> None:
    """On two ranks with weights that FSDP divides, and recomputed."""
    from transformers import Qwen3MoeConfig

    path = variant(Qwen3MoeConfig(**SHAPE, num_experts=4))
    changes: dict[str, Any] = {"model": {"path": str(path)}, "optim": {"max_steps": 4, "learning_rate": 0.01}}
    if ranks == 1:
        ours = train(**changes)
    else:
        divided = {"parallel": {"strategy": "fsdp"}, "memory": {"gradient_checkpointing": True}}
        ours = train_on_ranks(2, **changes, **divided, batch={"per_device": 2})
    assert ours.run.read()["resolved"]["kernel"]["experts"] == "2 of 2 modules, grouped"
    own = train(**changes, kernel={"experts": False}, name="own")
    assert own.run.read()["resolved"]["kernel"]["experts"] == f"{OWN}, as asked"
    assert ours.losses() == pytest.approx(own.losses(), rel=1e-5)
    assert ours.losses()[-1] < ours.losses()[0]
