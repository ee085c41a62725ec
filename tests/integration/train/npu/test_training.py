"""The whole training path on a simulated NPU against the same on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train, Trained

SHORT = {"max_steps": 6, "weight_decay": 0.1, "scheduler": "linear", "warmup_steps": 2}
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
        pytest.param({"optim": {**SHORT, "optimizer": "sgd"}}, id="sgd"),
    ],
)
def test_fp32_is_what_the_cpu_computes(train_on_npu: Train, train: Train, changes: dict[str, Any]) -> None:
    """Six steps: gradients that go stale when they are set to None would show from the second on."""
    ours, theirs = train_on_npu(**{**PACKED, **changes}), train(**{**PACKED, **changes})
    assert_same(ours, theirs)
    assert_same_weights(ours, theirs)
