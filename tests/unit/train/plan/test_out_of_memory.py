"""The message on memory in an out-of-memory error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ascendtune.train.memory_by_category import memory_by_category
from ascendtune.train.plan.out_of_memory import describe_memory

_MIB = 2**20


def _loop(peak: int, plan: dict[str, Any] | None = None) -> Any:
    """One matrix of 1 MiB with a gradient and AdamW's two moments."""
    module = torch.nn.Linear(512, 512, bias=False)
    module.weight.grad = torch.zeros_like(module.weight)
    optimizer = torch.optim.AdamW(module.parameters())
    optimizer.step()
    device = SimpleNamespace(memory_peak_bytes=lambda: peak)
    return SimpleNamespace(
        root=module, optimizer=optimizer, strategy=SimpleNamespace(device=device),
        run_directory=SimpleNamespace(read=lambda: {"plan": plan}),
    )  # fmt: skip


def test_every_tensor_is_counted_once() -> None:
    loop = _loop(10 * _MIB)
    found = memory_by_category(loop.root.parameters(), loop.optimizer)
    assert found["weights"] == found["gradients"] == _MIB
    assert found["optimizer state"] == pytest.approx(2 * _MIB, abs=64)


@pytest.mark.parametrize(
    ("activations", "said"),
    [(3, "activations and the rest exceed the estimate of 3.0 MiB"), (6, "as estimated")],
)
def test_the_category_that_grew_is_named(activations: int, said: str) -> None:
    at_peak = {"weights": _MIB, "gradients": _MIB, "optimizer": 2 * _MIB, "activations": activations * _MIB}
    assert said in describe_memory(_loop(10 * _MIB, {"at_peak": at_peak}))


def test_without_a_plan_the_categories_are_listed() -> None:
    assert describe_memory(_loop(10 * _MIB)).startswith("allocated: weights 1.0 MiB, gradients 1.0 MiB")
