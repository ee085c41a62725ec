"""Attention, fused operators and copies of the device, held against fp64 on the CPU or the model's own modules."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.unit.train.table_model import plan_of, write_dataset
from torch import nn
from transformers import AttentionInterface, AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

from ascendtune.train.attention.interface import eager_attention, register
from ascendtune.train.batch import Batches, DeviceBatch
from ascendtune.train.batch_feed import BatchFeed
from ascendtune.train.kernel.install import TABLE, install_kernels
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
