"""Attention, fused operators and copies of the device, held against fp64 on the CPU or the model's own modules."""

from __future__ import annotations

import random
import threading
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.unit.train.table_model import plan_of, write_dataset
from torch import nn
from transformers import AttentionInterface, AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

from ascendtune.recipe.recipe import Recipe
from ascendtune.train.adamw import AdamWSettings, KernelAdamW
from ascendtune.train.attention.interface import eager_attention, register
from ascendtune.train.batch import Batches, DeviceBatch
from ascendtune.train.batch_feed import BatchFeed
from ascendtune.train.kernel.adamw import choose_adamw, formula
from ascendtune.train.kernel.install import TABLE, install_kernels
from ascendtune.train.objective.logit_chunks import add_weight_gradient
from ascendtune.train.optimizer import make_optimizer
from ascendtune.train.precision import DTYPES, Precision
from ascendtune.train.strategy.base import Strategy

if TYPE_CHECKING:
    from ascendtune.machine.torch_backend.device import Device

BORDERS = (0, 37, 38, 130, 256)
ALLOWED = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 4e-3}
"""Of the largest value of the reference."""
SHAPE: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256,
}  # fmt: skip


class Layer(nn.Module):
    num_key_value_groups = 2


def assert_close(found: torch.Tensor, expected: torch.Tensor, allowed: float) -> None:
    """Any shape and dtype: differences as a share of the largest expected value."""
    difference = (found.double().cpu() - expected.double()).abs().max().item()
    limit = allowed * expected.double().abs().max().item()
    assert difference <= limit, f"differs by {difference:.3g}, allowed {limit:.3g}"


@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["sdpa", "device"])
def test_attention_of_documents_is_that_of_the_formula_in_fp64(
    name: str, precision: str, window: int | None, device: Device
) -> None:
    if precision == "fp16" and not device.supports_fp16:
        pytest.skip(f"{device.name} does not compute fp16")
    torch.manual_seed(0)
    shapes = [(1, heads, BORDERS[-1], 64) for heads in (4, 2, 2)]
    # Rounded first: the reference must not see digits that the device was not given.
    inputs = [torch.randn(shape).to(DTYPES[precision]).double().requires_grad_() for shape in shapes]
    weights = torch.randn(1, BORDERS[-1], 4, 64)
    expected, _ = eager_attention(Layer(), *inputs, None, cu_seqlens=BORDERS, sliding_window=window)
    (expected * weights).sum().backward()
    copies = [each.detach().to(device.torch_device, DTYPES[precision]).requires_grad_() for each in inputs]
    chosen = device.attention if name == "device" else name
    attention = AttentionInterface()[register(chosen)]
    borders = torch.tensor(BORDERS, dtype=torch.int32, device=device.torch_device)
    found, _ = attention(
        Layer(), *copies, None, cu_seqlens=BORDERS, cu_seqlens_device=borders, sliding_window=window
    )  # fmt: skip
    (found.float() * weights.to(device.torch_device)).sum().backward()
    for one, other in [(found, expected), *((copy.grad, each.grad) for copy, each in zip(copies, inputs, strict=True))]:
        assert one is not None and other is not None
        assert_close(one.detach(), other.detach(), ALLOWED[precision])


@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize(("of_values", "has_sinks"), [(64, True), (32, False), (32, True)])
def test_fused_attention_computes_sinks_and_narrow_values(
    of_values: int, has_sinks: bool, window: int | None, device: Device
) -> None:
    """Sinks are those of gpt-oss; DeepSeek's values are narrower than its keys."""
    torch.manual_seed(0)
    shapes = [(1, 4, BORDERS[-1], 64), (1, 2, BORDERS[-1], 64), (1, 2, BORDERS[-1], of_values), (4,)][: 3 + has_sinks]
    inputs = [torch.randn(shape).bfloat16().double().requires_grad_() for shape in shapes]
    weights = torch.randn(1, BORDERS[-1], 4, of_values)
    found: dict[str, list[torch.Tensor]] = {}
    for name, place in (("eager", torch.device("cpu")), (device.attention, device.torch_device)):
        copies = [
            each.detach().to(place, each.dtype if name == "eager" else torch.bfloat16).requires_grad_()
            for each in inputs
        ]
        attention = AttentionInterface()[register(name)]
        output, _ = attention(
            Layer(), *copies[:3], None, s_aux=copies[3] if has_sinks else None, sliding_window=window,
            cu_seqlens=BORDERS, cu_seqlens_device=torch.tensor(BORDERS, dtype=torch.int32, device=place),
        )  # fmt: skip
        (output * weights.to(place)).sum().backward()
        found[name] = [output.detach(), *(each.grad for each in copies if each.grad is not None)]
    for one, other in zip(found[device.attention], found["eager"], strict=True):
        assert_close(one, other, ALLOWED["bf16"])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", [Qwen3Config, Qwen3MoeConfig])
def test_fused_operators_are_installed_and_agree_with_the_model_on_the_cpu(
    kind: Any, precision: str, device: Device
) -> None:
    if (name := device.kernels) is None:
        pytest.skip(f"no fused operators on {device.kind}")
    torch.manual_seed(0)
    mixture = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1}
    config = kind(**SHAPE, **(mixture if kind is Qwen3MoeConfig else {}))
    ids = torch.randint(128, (2, 64))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    expected = model(input_ids=ids, labels=ids).loss
    expected.backward()
    gradients = {each: parameter.grad.clone() for each, parameter in model.named_parameters()}
    model.zero_grad()
    model.to(device.torch_device)
    computed = Precision(precision, "fp32", "as asked", device.kind)  # type: ignore[arg-type]
    chosen = install_kernels(model, "auto", device, computed)
    parts = set(TABLE[name]) - ({"experts"} if kind is Qwen3Config else {"swiglu"})
    unused = {part: chosen[part].description for part in parts if chosen[part].operator is None}
    assert not unused, unused
    with computed.autocast():
        found = model(input_ids=ids.to(device.torch_device), labels=ids.to(device.torch_device)).loss
    found.backward()
    assert found.item() == pytest.approx(expected.item(), rel=ALLOWED[precision])
    # A token near the border between two experts may go to the other one where rounding is coarser.
    if kind is Qwen3Config or precision == "fp32":
        for each, parameter in model.named_parameters():
            assert_close(parameter.grad, gradients[each], 3 * ALLOWED[precision])


@pytest.mark.parametrize("rank", [3, 16])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_adapters_of_experts_agree_with_peft_on_the_cpu(precision: str, rank: int, device: Device) -> None:
    if device.kernels is None:
        pytest.skip(f"no fused operators on {device.kind}")
    torch.manual_seed(0)
    config = Qwen3MoeConfig(**SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    targets = ["experts.gate_up_proj", "experts.down_proj"]
    tuned = get_peft_model(model, LoraConfig(r=rank, target_modules=[], target_parameters=targets))
    for name, parameter in tuned.named_parameters():
        if ".lora_B." in name:
            nn.init.normal_(parameter, std=0.05)
    ids = torch.randint(128, (2, 64))
    expected = tuned(input_ids=ids, labels=ids).loss
    expected.backward()
    gradients = {name: each.grad for name, each in tuned.named_parameters() if each.grad is not None}
    tuned.zero_grad()
    tuned.to(device.torch_device)
    computed = Precision(precision, "fp32", "as asked", device.kind)  # type: ignore[arg-type]
    chosen = install_kernels(model, "auto", device, computed)["experts"].description
    assert chosen.endswith("in 2 of 2 for adapters, too"), chosen
    with computed.autocast():
        found = tuned(input_ids=ids.to(device.torch_device), labels=ids.to(device.torch_device)).loss
    found.backward()
    assert found.item() == pytest.approx(expected.item(), rel=ALLOWED[precision])
    if precision == "fp32":
        for name, parameter in tuned.named_parameters():
            if name in gradients:
                assert_close(parameter.grad, gradients[name], 3 * ALLOWED[precision])


@pytest.mark.parametrize("limit", [None, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adamw_by_the_kernel_is_that_of_the_formula_in_fp64(
    dtype: torch.dtype, limit: float | None, device: Device
) -> None:
    if device.kernels is None:
        pytest.skip(f"no fused operators on {device.kind}")
    recipe = Recipe.check({"model": {"path": "moon"}, "data": {"train": "tide.jsonl"}, "optim": {"weight_decay": 0.1}})
    chosen = choose_adamw(recipe, Strategy(device), Precision("bf16", "bf16", "as asked", device.kind))
    assert chosen.update is not None, chosen.description
    torch.manual_seed(0)
    # One that the kernel updates, no multiple of its block, and one that torch does.
    weights = [nn.Parameter(torch.randn(shape).to(device.torch_device, dtype)) for shape in ((700, 1001), (30, 40))]
    named = [(str(number), each) for number, each in enumerate(weights)]
    optimizer = make_optimizer(recipe.optim, named, 0.01, fused=True, update=chosen.update)
    assert isinstance(optimizer, KernelAdamW)
    expected = [each.detach().double().cpu() for each in weights]
    moments = [[torch.zeros_like(each), torch.zeros_like(each)] for each in expected]
    section = recipe.optim
    settings = AdamWSettings(0.01, section.weight_decay, section.beta1, section.beta2, section.epsilon)
    for step in range(1, 6):
        factor = 1.0
        for each in weights:
            each.grad = torch.randn_like(each)
        if limit is not None:
            norm = torch.nn.utils.get_total_norm([each.grad for each in weights if each.grad is not None]).float()
            optimizer.clip(limit, norm)
            factor = limit / (float(norm) + 1e-6)
        for number, each in enumerate(weights):
            assert each.grad is not None
            given = (expected[number], each.grad.double().cpu(), *moments[number])
            *moments[number], expected[number] = formula(*given, step=step, factor=factor, settings=settings)
        optimizer.step()
    for found, other in zip(weights, expected, strict=True):
        # Each of five steps rounds weight and moments.
        assert_close(found.detach(), other, 1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("seed", range(4))
def test_adamw_by_the_kernel_is_the_formula_for_drawn_numbers(seed: int, device: Device) -> None:
    if device.kernels is None:
        pytest.skip(f"no fused operators on {device.kind}")
    update = choose_adamw(
        Recipe.check({"model": {"path": "moon"}, "data": {"train": "tide.jsonl"}}), Strategy(device),
        Precision("bf16", "bf16", "as asked", device.kind),
    ).update  # fmt: skip
    assert update is not None
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    for _ in range(10):
        count, step = draw.choice((1, 15, 4096, draw.randint(2, 9000))), draw.choice((1, 2, 10, 1000, 10**6))
        dtypes = [draw.choice((torch.float32, torch.bfloat16)) for _ in range(2)]
        settings = AdamWSettings(
            10 ** draw.uniform(-7, -1), draw.choice((0.0, 0.1, 1.0)), draw.choice((0.0, 0.5, 0.9)),
            draw.choice((0.9, 0.999, 0.99999)), draw.choice((1e-15, 1e-8, 1e-3)),
        )  # fmt: skip
        size, factor = 10 ** draw.uniform(-15, 12), draw.choice((1.0, 1e-3))
        weight, gradient, mean = torch.randn(3, count, generator=generator)
        square = torch.rand(count, generator=generator)
        gradient, mean, square = gradient * size, mean * size * factor, (square * size * factor) ** 2
        given = [each.to(dtypes[each is gradient]) for each in (weight, gradient, mean, square)]
        expected = formula(*(each.double() for each in given), step=step, factor=factor, settings=settings)
        found = [each.to(device.torch_device) for each in given]
        numbers = [torch.tensor(number, device=device.torch_device) for number in (float(step), factor)]
        update(found[0], found[1], found[2], found[3], numbers[0], numbers[1], settings)
        assert torch.equal(found[1].cpu(), given[1])
        moved = (expected[2] - given[0].double()).abs() + given[0].double().abs()
        rounding = 0.0 if dtypes[0] == torch.float32 else torch.finfo(dtypes[0]).eps / 2
        sizes = (given[2].double().abs() + given[1].double().abs() * factor, expected[1], moved)
        for one, other, of in zip((found[2], found[3], found[0]), expected, sizes, strict=True):
            # Numbers below the smallest that bf16 has with all digits are rounded coarser.
            allowed = rounding * other.abs() + 1e-6 * of + 1e-37
            assert ((one.double().cpu() - other).abs() <= allowed).all()


def test_weight_gradient_of_the_head_is_added_in_fp32(device: Device) -> None:
    torch.manual_seed(0)
    grad, hidden, total = torch.randn(300, 513), torch.randn(300, 96), torch.randn(513, 96)
    given = [each.to(device.torch_device, torch.bfloat16) for each in (grad, hidden)]
    expected = total.double() + given[0].double().cpu().t() @ given[1].double().cpu()
    found = total.to(device.torch_device)
    add_weight_gradient(found, *given)
    # One operator does not round the product to bf16 on its way.
    assert_close(found, expected, 2e-6 if device.kernels is not None else 1e-2)


def test_rotation_by_complex_numbers_has_the_gradient_of_the_cpu(device: Device) -> None:
    """As Llama 4 rotates queries: the gradient is multiplied with a conjugate, which torch makes when it is read."""
    gradients = []
    for place in (torch.device("cpu"), device.torch_device):
        angles = torch.arange(8.0).to(place)
        pairs = torch.arange(16.0).reshape(8, 2).to(place).requires_grad_()
        rotated = torch.view_as_real(torch.view_as_complex(pairs) * torch.polar(torch.ones_like(angles), angles))
        rotated[..., 0].sum().backward()
        assert pairs.grad is not None
        gradients.append(pairs.grad)
    assert_close(gradients[1], gradients[0], ALLOWED["fp32"])


def test_copy_to_host_gives_what_was_computed_before_it_and_nothing_later(device: Device) -> None:
    if not device.runs_asynchronously:
        pytest.skip(f"{device.kind} gives the tensor itself: there is nothing to wait for")
    tensor = torch.arange(1 << 20, dtype=torch.float32, device=device.torch_device)
    tensor.mul_(2)
    waits = device.copy_to_host(tensor)
    tensor.zero_()
    assert torch.equal(waits(), 2 * torch.arange(1 << 20, dtype=torch.float32))


def test_feed_puts_the_batches_of_the_plan_on_the_device(device: Device, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "tokens")
    batches = Batches(dataset, plan_of(dataset, 3, seed=1), Strategy(device), 1, padding_free=False, pad_id=0)
    feed = BatchFeed(batches, 0, 9)
    try:
        for step in range(9):
            for ours, expected in zip(
                feed.of_step(step, context=nullcontext)[1], batches.of_step(step)[1], strict=True
            ):
                for field in fields(DeviceBatch):
                    one, other = getattr(ours, field.name), getattr(expected, field.name)
                    assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
                assert ours.input_ids.device.type == device.kind
    finally:
        feed.close()
    assert not [each for each in threading.enumerate() if each.name == "batches"]
