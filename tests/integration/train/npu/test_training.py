"""The whole training path on a simulated NPU against the same on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from ascend_node.cann.node import Node
from ascendtune.core.errors import MachineError
from ascendtune.machine.torch_backend.find import open_device
from ascendtune.recipe.sections import OptimSection
from ascendtune.train.optimizer import make_optimizer

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train, Trained

SHORT = {"max_steps": 6, "weight_decay": 0.1, "scheduler": "linear", "warmup_steps": 2}
KERNELS = ("rms_norm", "rotary", "swiglu")
NF4 = {"quantization": "nf4", "double_quantization": True}
PACKED: dict[str, Any] = {"data": {"packing": True}, "batch": {"per_device": 2}, "optim": SHORT}


def assert_same(found: Trained, expected: Trained, tolerance: float = 1e-5) -> None:
    for key in ("loss", "grad_norm"):
        assert found.curve(key) == pytest.approx(expected.curve(key), rel=tolerance), key
    for key in ("learning_rate", "batch_hash", "labelled_tokens"):
        assert found.curve(key) == expected.curve(key), key


def assert_same_weights(found: Trained, expected: Trained) -> None:
    ours, theirs = found.weights(), expected.weights()
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="packed"),
        pytest.param({"data": {"packing": False}}, id="padded"),
        pytest.param({"batch": {"per_device": 1, "accumulate": 2}}, id="accumulated"),
        pytest.param({"memory": {"gradient_checkpointing": True}}, id="recomputed"),
        pytest.param({"memory": {"offload_activations": True}}, id="offloaded"),
        pytest.param({"method": {"tuner": "lora"}}, id="lora"),
        pytest.param({"method": {"tuner": "lora"}, "model": NF4}, id="nf4"),
        pytest.param({"optim": {**SHORT, "optimizer": "sgd"}}, id="sgd"),
    ],
)
def test_fp32_is_what_the_cpu_computes(train_on_npu: Train, train: Train, changes: dict[str, Any]) -> None:
    """Six steps: gradients that go stale when they are set to None would show from the second on."""
    ours, theirs = train_on_npu(**{**PACKED, **changes}), train(**{**PACKED, **changes})
    assert_same(ours, theirs)
    assert_same_weights(ours, theirs)


@pytest.mark.parametrize("changes", [{}, {"method": {"tuner": "lora"}, "precision": "bf16"}], ids=["fp32", "lora"])
def test_fused_operators_are_tested_and_taken(train_on_npu: Train, changes: dict[str, Any]) -> None:
    fused, own = (train_on_npu(**{**PACKED, **changes}, kernel=kernel, name=kernel) for kernel in ("auto", "off"))
    assert fused.run.read()["resolved"]["kernel"] == {
        "rms_norm": "5 of 5 modules, npu_rms_norm",
        "rotary": "2 of 2 modules, npu_rotary_mul",
        "swiglu": "2 of 2 modules, npu_swiglu",
        "experts": "the model's own: nothing of this form in it",
        "adamw": "torch's: no kernel on npu",
    }
    assert fused.losses() == pytest.approx(own.losses(), rel=5e-3 if changes else 1e-5)


def test_gemmas_norm_and_a_joined_projection(train_on_npu: Train, train: Train, variant: Callable[..., Path]) -> None:
    """1 + weight; gate and up as one matrix; half of every head is rotated."""
    from transformers import GemmaConfig, Phi3Config

    shape: dict[str, Any] = {
        "vocab_size": 512, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0,
    }  # fmt: skip
    half = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    for config, parts in (
        (GemmaConfig(**shape, head_dim=8), ["rms_norm", "rotary"]),
        (Phi3Config(**shape, rope_parameters=half, original_max_position_embeddings=512), [*KERNELS]),
    ):
        changes = {**PACKED, "model": {"path": str(variant(config))}, "name": config.model_type}
        ours = train_on_npu(**changes)
        said = ours.run.read()["resolved"]["kernel"]
        assert [part for part in KERNELS if "npu_" in said[part]] == parts
        assert_same(ours, train(**{**changes, "name": f"{config.model_type}-cpu"}))


def test_bf16_is_close_to_the_cpus(train_on_npu: Train, train: Train) -> None:
    ours, theirs = (start(**PACKED, precision="bf16") for start in (train_on_npu, train))
    assert ours.losses() == pytest.approx(theirs.losses(), rel=5e-3)
    assert ours.losses()[-1] < ours.losses()[0]


@pytest.mark.parametrize("tuner", ["full", "lora"])
def test_fp16_scales_its_gradients(train_on_npu: Train, train: Train, tuner: str) -> None:
    ours = train_on_npu(**PACKED, precision="fp16", method={"tuner": tuner}, model={"dtype": "fp32"})
    theirs = train(**PACKED, method={"tuner": tuner})
    assert ours.losses() == pytest.approx(theirs.losses(), rel=5e-3)


def test_a_step_that_overflows_in_fp16_is_left_out(node: Node) -> None:
    weights, scales = node.call(overflow_in_the_second_step)
    assert scales == [2.0**16, 2.0**15, 2.0**15]
    assert 1.0 > weights[0] == weights[1] > weights[2] > 0.0


def overflow_in_the_second_step() -> tuple[list[float], list[float]]:
    """On the node: a weight that was 1 after each of three steps made as the loop makes them, and the scale then."""
    device = open_device("npu")
    weight = torch.nn.Parameter(torch.ones(4, 4, device="npu"))
    optimizer = make_optimizer(
        OptimSection(), [("weight", weight)], learning_rate=0.1, fused=device.fuses_optimizer("fp16")
    )
    scaler = device.gradient_scaler()
    after, scales = [], []
    for number in range(3):
        product = weight.half() * (60000 if number == 1 else 1)
        scaler.scale(product.float().sum() * 0.1).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        after.append(weight[0, 0].item())
        scales.append(scaler.get_scale())
    return after, scales


def test_fp16_gradients_in_host_memory_are_refused(node: Node) -> None:
    """The scale had not come when the host divided by it: a norm of 2.1 in place of 3.2, and the run went on."""
    assert node.call(code_of_a_scale_on_the_host) == "fp16-unsupported"


def code_of_a_scale_on_the_host() -> str:
    """On the node."""
    with pytest.raises(MachineError) as caught:
        open_device("npu").gradient_scaler(on_host=True)
    return caught.value.code


def test_sliding_window_on_npu_equals_cpu(train_on_npu: Train, train: Train, variant: Callable[..., Path]) -> None:
    from transformers import MistralConfig

    config = MistralConfig(
        vocab_size=512, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=8, tie_word_embeddings=False,
    )  # fmt: skip
    changes = {**PACKED, "model": {"path": str(variant(config))}}
    assert_same(train_on_npu(**changes), train(**changes))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_run_continues_bit_by_bit(train_on_npu: Train, precision: str) -> None:
    """Dropout draws from the device's generator, so its state must come back too."""
    changes = {
        **PACKED,
        "method": {"tuner": "lora", "lora": {"dropout": 0.2}},
        "precision": precision,
        "checkpoint": {"every_steps": 3},
    }
    whole = train_on_npu(**changes)
    curves = {key: whole.curve(key) for key in ("loss", "grad_norm", "batch_hash")}
    weights = whole.weights()
    checkpoint = whole.run.checkpoint(3)
    assert set(load_file(checkpoint / "rng/rank_0.safetensors")) == {"cpu", "device"}
    again = train_on_npu(**{**changes, "checkpoint": {"every_steps": 3, "resume": str(checkpoint)}})
    assert again.curve("attempt") == [1, 1, 1, 2, 2, 2]
    for key, curve in curves.items():
        assert again.curve(key) == curve
    for name, weight in again.weights().items():
        assert torch.equal(weight, weights[name]), name


def test_the_vendors_fused_adamw_goes_stale_and_ours_does_not(node: Node) -> None:
    """Why `train/optimizer.py` takes torch's. When the first half fails, torch_npu has been repaired."""
    vendors, ours, expected = node.call(step_with_three_optimizers)
    assert vendors[0] == pytest.approx(expected[0]) and vendors[1] != pytest.approx(expected[1], rel=0.05)
    assert ours == pytest.approx(expected, rel=1e-5)


def step_with_three_optimizers() -> list[list[float]]:
    """On the node: a weight after each of three steps whose gradients differ and are set to None in between."""
    import torch_npu

    curves = []
    for make, device in (
        (torch_npu.optim.NpuFusedAdamW, "npu"),
        (partial(torch.optim.AdamW, fused=True), "npu"),
        (torch.optim.AdamW, "cpu"),
    ):
        module = torch.nn.Linear(3, 1, bias=False, device=device)
        torch.nn.init.ones_(module.weight)
        optimizer = make(module.parameters(), lr=0.1, weight_decay=0.0)
        curve = []
        for sign in (1.0, -3.0, 2.0):
            (module(torch.ones(1, 3, device=device)) * sign).sum().backward()
            optimizer.step()
            module.zero_grad(set_to_none=True)
            curve.append(module.weight[0, 0].item())
        curves.append(curve)
    return curves


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, {"jit_compile": "false"}),
        (
            {
                "ASCENDTUNE_JIT_COMPILE": 1,
                "TASK_QUEUE_ENABLE": 2,
                "MULTI_STREAM_MEMORY_REUSE": 2,
                "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:False",
            },
            {
                "jit_compile": "true",
                "TASK_QUEUE_ENABLE": "2",
                "MULTI_STREAM_MEMORY_REUSE": "2",
                "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:False",
            },
        ),
    ],
    ids=["ours", "the user's"],
)
def test_settings_of_the_device_are_recorded(node: Node, variables: dict[str, Any], told: dict[str, str]) -> None:
    assert node.call(settings_of_the_device, **variables) == told


def settings_of_the_device() -> dict[str, str]:
    """On the node."""
    device = open_device("npu")
    device.activate()
    return device.settings()
