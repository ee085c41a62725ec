"""Every key of `optim` has the effect that its documentation names, compared with AdamW written out in NumPy."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from ascendtune.recipe.sections import OptimSection
from ascendtune.train.optimizer import make_optimizer, states_per_parameter

RATE = 0.01
USUAL: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.1}
STATES = {"auto": 2, "adamw": 2, "muon": 1, "sgd": 0, "adafactor": 0}
"""Tensors of a parameter's size that each optimizer keeps."""


def adamw(
    weight: NDArray[np.float64], gradients: list[NDArray[np.float64]], *, beta1: float, beta2: float, epsilon: float,
    weight_decay: float,
) -> NDArray[np.float64]:  # fmt: skip
    """Algorithm 2 of Loshchilov and Hutter (arXiv:1711.05101), with a constant learning rate."""
    mean, square = np.zeros_like(weight), np.zeros_like(weight)
    for step, gradient in enumerate(gradients, 1):
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient**2
        change = mean / (1 - beta1**step) / (np.sqrt(square / (1 - beta2**step)) + epsilon)
        weight = weight - RATE * (change + weight_decay * weight)
    return weight


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "changed", [{}, {"beta1": 0.5}, {"beta2": 0.6}, {"epsilon": 0.3}, {"weight_decay": 0.0}], ids=str
)
def test_steps_are_those_of_adamw_with_the_keys_of_the_recipe(changed: dict[str, float], fused: bool) -> None:
    keys = USUAL | changed
    random = np.random.default_rng(3)
    start, bias = random.normal(size=(4, 5)), random.normal(size=4)
    # Gradients of different sizes: with equal ones neither beta shows.
    gradients = [random.normal(size=(4, 5)) * size for size in (1, 10, 0.1, 3)]
    layer = nn.Linear(5, 4).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(start))
        layer.bias.copy_(torch.tensor(bias))
    optimizer = make_optimizer(OptimSection(**keys), layer.named_parameters(), RATE, fused=fused)
    for gradient in gradients:
        layer.weight.grad, layer.bias.grad = torch.tensor(gradient), torch.tensor(gradient[:, 0])
        optimizer.step()
    np.testing.assert_allclose(layer.weight.detach().numpy(), adamw(start, gradients, **keys), rtol=1e-9)
    without_decay = adamw(bias, [each[:, 0] for each in gradients], **keys | {"weight_decay": 0.0})
    np.testing.assert_allclose(layer.bias.detach().numpy(), without_decay, rtol=1e-9)


def test_biases_of_stacked_experts_do_not_decay() -> None:
    # As gpt-oss names them.
    shapes = {"experts.gate_up_proj": (4, 2, 6), "experts.gate_up_proj_bias": (4, 6), "router.weight": (4, 2)}
    weights = {name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
    optimizer = make_optimizer(OptimSection(weight_decay=0.1), weights.items(), RATE, fused=False)
    decays = {id(each): group["weight_decay"] for group in optimizer.param_groups for each in group["params"]}
    assert [decays[id(each)] for each in weights.values()] == [0.1, 0.0, 0.1]


def test_sgd_moves_against_the_gradient_alone() -> None:
    layer = nn.Linear(3, 2, bias=False).double()
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.randn(2, 3, dtype=torch.float64)
    make_optimizer(OptimSection(optimizer="sgd"), layer.named_parameters(), RATE, fused=True).step()
    torch.testing.assert_close(layer.weight.detach(), before - RATE * layer.weight.grad)


def test_states_are_stated_for_each_optimizer_of_a_recipe() -> None:
    assert set(STATES) == set(get_args(OptimSection.model_fields["optimizer"].annotation))


@pytest.mark.parametrize(("name", "states"), STATES.items())
def test_memory_is_planned_for_the_states_that_the_optimizer_keeps(name: str, states: int) -> None:
    section = OptimSection.model_validate({"optimizer": name})
    layer = nn.Linear(30, 20, bias=False)
    optimizer = make_optimizer(section, layer.named_parameters(), RATE, fused=False)
    layer.weight.grad = torch.randn(20, 30)
    optimizer.step()
    kept = [each for each in optimizer.state[layer.weight].values() if torch.is_tensor(each)]
    assert sum(each.numel() for each in kept) // layer.weight.numel() == states == states_per_parameter(section)


def test_frozen_parameters_are_left_out() -> None:
    layer = nn.Linear(3, 2)
    layer.weight.requires_grad_(False)
    optimizer = make_optimizer(OptimSection(), layer.named_parameters(), RATE, fused=False)
    assert [each is layer.bias for group in optimizer.param_groups for each in group["params"]] == [True]


@pytest.mark.parametrize(("ratio", "factor"), [(None, 1.0), (16.0, 16.0)])
def test_b_matrices_learn_faster_by_the_ratio_of_lora_plus_and_not_without(ratio: float | None, factor: float) -> None:
    weights = {name: nn.Parameter(torch.zeros(2, 2)) for name in ("q.lora_A.weight", "q.lora_B.weight")}
    optimizer = make_optimizer(OptimSection(), weights.items(), RATE, fused=False, plus_ratio=ratio)
    rates = {id(each): group["lr"] for group in optimizer.param_groups for each in group["params"]}
    assert [rates[id(each)] for each in weights.values()] == pytest.approx([RATE, RATE * factor])
    factors = {group["learning_rate_factor"] for group in optimizer.param_groups}
    assert factors == {1.0, factor}
