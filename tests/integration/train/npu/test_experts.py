"""Mixtures of experts on a simulated NPU: torch_npu's grouped matrix product against the CPU's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ascend_node.cann.node import Node
from ascendtune.core.rundir import RunDir

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

SHORT: dict[str, Any] = {
    "data": {"packing": True},
    "batch": {"per_device": 2},
    "optim": {"max_steps": 4, "max_grad_norm": None},
}
GROUPED = "aclnnGroupedMatmulV5"


@pytest.fixture
def mixture(variant: Callable[..., Path]) -> Callable[..., Path]:
    """A tiny mixture: of Qwen2, which has a shared expert too, of Qwen3, or gpt-oss, whose experts have biases."""

    def make(family: str = "Qwen3MoeConfig") -> Path:
        import transformers

        config = getattr(transformers, family)(
            vocab_size=512, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=4, num_local_experts=4,
            num_experts_per_tok=2, shared_expert_intermediate_size=24, pad_token_id=0,
        )  # fmt: skip
        return variant(config)

    return make


@pytest.mark.parametrize("family", ["Qwen2MoeConfig", "Qwen3MoeConfig", "GptOssConfig"])
def test_fp32_is_what_the_cpu_computes(
    train_on_npu: Train, train: Train, mixture: Callable[..., Path], family: str
) -> None:
    changes = {**SHORT, "model": {"path": str(mixture(family))}}
    fused, own = (train_on_npu(**changes, kernel=kernel, name=kernel) for kernel in ("auto", "off"))
    said = fused.run.read()["resolved"]["kernel"]
    assert said["experts"] == "2 of 2 modules, npu_grouped_matmul"
    on_cpu = train(**changes, name="cpu")
    for ours in (fused, own):
        assert ours.losses() == pytest.approx(on_cpu.losses(), rel=1e-5)
        assert ours.curve("grad_norm") == pytest.approx(on_cpu.curve("grad_norm"), rel=1e-5)
    for name, weight in fused.weights().items():
        torch.testing.assert_close(weight, on_cpu.weights()[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"method": {"tuner": "lora"}}], ids=["full", "lora"])
def test_fused_experts_follow_the_models_own_in_bf16(
    train_on_npu: Train, mixture: Callable[..., Path], changes: dict[str, Any]
) -> None:
    """Weights in fp32 under autocast, and frozen ones in bf16."""
    changes = {**SHORT, "model": {"path": str(mixture())}, "precision": "bf16", **changes}
    fused, own = (train_on_npu(**changes, kernel=kernel, name=kernel) for kernel in ("auto", "off"))
    assert fused.run.read()["resolved"]["kernel"]["experts"] == "2 of 2 modules, npu_grouped_matmul"
    assert fused.losses() == pytest.approx(own.losses(), rel=5e-3)


def test_experts_divided_over_two_npus_give_the_losses_of_the_cpu(
    train_on_npus: Train, train: Train, mixture: Callable[..., Path]
) -> None:
    model = {"path": str(mixture())}
    both = train_on_npus(2, **{**SHORT, "batch": {"per_device": 1}}, model=model, parallel={"strategy": "fsdp"})
    assert both.run.read()["resolved"]["kernel"]["experts"] == "2 of 2 modules, npu_grouped_matmul"
    assert both.losses() == pytest.approx(train(**SHORT, model=model, name="cpu").losses(), rel=1e-5)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("family", ["Qwen3MoeConfig", "GptOssConfig"])
def test_adapters_of_experts_train_as_by_peft_on_the_cpu(
    train_on_npu: Train, train_on_npus: Train, train: Train, mixture: Callable[..., Path], family: str, ranks: int
) -> None:
    lora = {"tuner": "lora", "lora": {"rank": 3, "target": ["all-linear", "all-experts"]}}
    changes = {"model": {"path": str(mixture(family))}, "method": lora, "memory": {"gradient_checkpointing": True}}
    on_cpu = train(**SHORT, **changes, name="cpu")
    if ranks == 2:
        ours = train_on_npus(2, **{**SHORT, "batch": {"per_device": 1}}, **changes, parallel={"strategy": "fsdp"})
    else:
        ours = train_on_npu(**SHORT, **changes)
    found = ours.run.read()["resolved"]["kernel"]["experts"]
    assert found == "2 of 2 modules, npu_grouped_matmul; in 2 of 2 for adapters, too"
    assert ours.losses() == pytest.approx(on_cpu.losses(), rel=1e-5)
    assert ours.curve("grad_norm") == pytest.approx(on_cpu.curve("grad_norm"), rel=1e-4)
    for name, weight in ours.weights().items():
        torch.testing.assert_close(weight, on_cpu.weights()[name], rtol=1e-3, atol=1e-4)


def test_an_operator_that_is_one_per_cent_off_is_not_used(
    node: Node, prepared: Callable[..., RunDir], train: Train, mixture: Callable[..., Path]
) -> None:
    from tests.integration.train.npu.test_operators import train_with

    changes = {**SHORT, "model": {"path": str(mixture())}}
    run = prepared(**changes, name="spoilt")
    curve, ran = node.call(train_with, run.path, GROUPED)
    assert GROUPED in ran
    assert "npu_grouped_matmul disagrees with the module" in run.read()["resolved"]["kernel"]["experts"]
    assert curve[::2] == pytest.approx(train(**changes, name="cpu").losses(), rel=1e-5)


@pytest.mark.parametrize("kernel", ["auto", "off"])
def test_operators_of_experts_are_compared_with_the_cpu(
    node: Node, prepared: Callable[..., RunDir], mixture: Callable[..., Path], kernel: str
) -> None:
    from tests.integration.train.npu.test_operators import CHECKED_ELSEWHERE, operators_of_the_cases, train_with

    _, ran = node.call(train_with, prepared(**SHORT, model={"path": str(mixture())}, kernel=kernel).path, "none")
    assert (GROUPED in ran) == (kernel == "auto")
    assert sorted(set(ran) - node.call(operators_of_the_cases) - CHECKED_ELSEWHERE) == []


def test_the_vendors_operator_has_no_derivative(node: Node) -> None:
    """Why `train/kernel/npu.py` writes one. When this fails, torch_npu has got its own."""
    assert node.call(gradients) == {"the vendor's": [False, False], "ours": [True, True]}


def gradients() -> dict[str, list[bool]]:
    """On the node: whether rows and weight get a gradient."""
    import torch_npu

    from ascendtune.train.kernel.npu import npu_grouped_matmul

    counts, found = torch.tensor([1, 3], device="npu"), {}
    named = {"group_list": counts, "group_list_type": 1, "group_type": 0, "split_item": 3}
    for name, multiply in (
        ("the vendor's", lambda rows, weight: torch_npu.npu_grouped_matmul([rows], [weight], **named)[0]),
        ("ours", lambda rows, weight: npu_grouped_matmul(rows, weight, counts)),
    ):
        leaves = [torch.ones(shape, device="npu", requires_grad=True) for shape in ((4, 3), (2, 3, 5))]
        output = multiply(*leaves)
        found[name] = [each is not None for each in torch.autograd.grad(output.sum(), leaves, allow_unused=True)]
    return found


def test_the_product_keeps_what_its_gradients_need(node: Node) -> None:
    """Rows for the gradient of the weights, which frozen experts do not have, and weights for that of the rows."""
    counts, rows, weight = [2], [4, 3], [2, 3, 5]
    assert node.call(kept) == [[rows, weight, counts], [weight, counts], [rows, counts]]


def kept() -> list[list[list[int]]]:
    """On the node: shapes that are kept if both, rows only and weight only require a gradient."""
    from ascendtune.train.kernel.npu import npu_grouped_matmul

    counts, found = torch.tensor([1, 3], device="npu"), []
    for trained in ((True, True), (True, False), (False, True)):
        leaves = [
            torch.ones(shape, device="npu", requires_grad=each)
            for shape, each in zip(((4, 3), (2, 3, 5)), trained, strict=True)
        ]
        shapes: list[list[int]] = []

        def pack(tensor: torch.Tensor, shapes: list[list[int]] = shapes) -> torch.Tensor:
            shapes.append([*tensor.shape])
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = npu_grouped_matmul(*leaves, counts)
        torch.autograd.grad(output.sum(), [each for each in leaves if each.requires_grad])
        found.append(shapes)
    return found


def test_only_the_models_own_experts_wait_for_the_device(node: Node) -> None:
    """Torch's loop, once per expert and product: forward two, backward four, of four experts, in two layers."""
    assert node.call(waits) == [48, 0]


def waits() -> list[int]:
    """On the node: how often experts read a number back, the model's own and ours."""
    import transformers

    from ascendtune.machine.torch_backend.find import open_device
    from ascendtune.train.kernel.install import install_kernels
    from ascendtune.train.precision import Precision

    config = transformers.Qwen3MoeConfig(
        vocab_size=64, hidden_size=32, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    device = open_device("npu")
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").to("npu")
    ids = torch.arange(40, device="npu")[None]
    # Not of experts: numbers of the host in arithmetic, which are read in the same way, and a question of the mask.
    others = {"aten::add", "aten::sub", "aten::mul", "aten::floor_divide", "aten::is_nonzero"}
    found = []
    for kernel in ("off", "auto"):
        install_kernels(model, kernel, device, Precision("fp32", "fp32", "", "npu"))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            model(input_ids=ids, use_cache=False).logits.sum().backward()
        events = profile.events()
        assert any(event.name == "npu::npu_grouped_matmul" for event in events) == (kernel == "auto")
        found.append(sum(event.name == "aten::item" and event.cpu_parent.name not in others for event in events))
    return found
