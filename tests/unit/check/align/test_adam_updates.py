"""Updates of Adam are recomputed from dumped gradients: no rounding of bf16 hides another setting."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from ascendtune.check.align.adam_updates import AdamCheck, AdamSettings, adam_settings, check_adam, other_settings
from ascendtune.check.align.dump import find_dump
from dump_writer import DumpWriter

NOISE = 0.05
"""Of the candidate's gradients, relative: that of bf16, or more."""
SETTINGS = AdamSettings(0.9, 0.999, 1e-8, 1.0)


def _net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 8))


def _adam(**changes: Any) -> Callable[[nn.Module], torch.optim.Optimizer]:
    settings = {"lr": 1e-3, "weight_decay": 0.1, **changes}
    return lambda model: torch.optim.AdamW(model.parameters(), **settings)


class EpsilonInRoot(torch.optim.AdamW):
    """An update that divides by sqrt(v + epsilon)."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            (one, two), rate = group["betas"], group["lr"]
            for each in group["params"]:
                state = self.state[each]
                state["step"] = count = state.get("step", 0) + 1
                state["mean"] = one * state.get("mean", 0.0) + (1 - one) * each.grad
                state["square"] = two * state.get("square", 0.0) + (1 - two) * each.grad**2
                root = (state["square"] / (1 - two**count) + group["eps"]).sqrt()
                each.mul_(1 - rate * group["weight_decay"]).sub_(rate * state["mean"] / (1 - one**count) / root)


def _dumped(
    directory: Path,
    make: Callable[[nn.Module], torch.optim.Optimizer],
    noise: float = 0.0,
    clip: float | None = 1.0,
    steps: int = 3,
    norm_error: float | None = None,
) -> Path:
    """Three steps whose gradients are drawn, with other `noise` on each side.

    Args:
        norm_error: relative error of the first norm; the gradients of all steps then differ in signs only.
    """
    model = _net()
    optimizer = make(model)
    draw = torch.Generator().manual_seed(1)
    for step in range(1, steps + 1):
        writer = DumpWriter(model, step)
        writer.parameters("parameter_before")
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draw) * 10 ** -torch.rand((), generator=draw)
            if norm_error is not None:
                sizes = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
                parameter.grad = sizes * parameter.grad.sign()
            error = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step))
            parameter.grad *= 0.02 * step * (1 + noise * error)
        writer.parameters("gradient")
        if clip is not None:
            clip_grad_norm_(model.parameters(), clip * 0.1 * (1 + (norm_error or 0.0) * (step == 1)))
        optimizer.step()
        writer.parameters("parameter_after")
        writer.write(directory)
    return directory


def _checked(reference: Path, candidate: Path, settings: AdamSettings) -> AdamCheck | None:
    one, other = find_dump(reference / "dump"), find_dump(candidate / "dump")
    assert one is not None and other is not None
    return check_adam(one, other, settings)


CLIPPED = AdamSettings(0.9, 0.999, 1e-8, 0.1)


@pytest.mark.parametrize(
    ("make", "clip", "expected"),
    [
        (_adam(eps=1e-6), 1.0, ("epsilon", 1e-6)),
        (_adam(betas=(0.8, 0.999)), 1.0, ("beta1", 0.8)),
        (_adam(betas=(0.9, 0.99)), 1.0, ("beta2", 0.99)),
        (_adam(), 5.0, ("max_grad_norm", 0.5)),
        (_adam(), None, ("max_grad_norm", None)),
        (_adam(lr=1.02e-3), 1.0, ("learning_rate", 1.02)),
        (_adam(weight_decay=0.0), 1.0, ("weight_decay", 0.0)),
        (
            lambda model: torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.1),
            1.0,
            ("decay_in_gradient", 0.1),
        ),
        (
            lambda model: EpsilonInRoot(model.parameters(), lr=1e-3, weight_decay=0.1),
            1.0,
            ("has_epsilon_in_root", True),
        ),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else "",
)
def test_setting_is_named_whatever_the_noise_of_the_gradients(
    tmp_path: Path, make: Callable[[nn.Module], torch.optim.Optimizer], clip: float | None, expected: tuple[str, Any]
) -> None:
    reference = _dumped(tmp_path / "reference", _adam())
    found = _checked(reference, _dumped(tmp_path / "candidate", make, NOISE, clip), CLIPPED)
    assert found is not None and not found.is_same and found.other is not None, found
    assert found.other.setting == expected[0]
    assert found.other.found == (None if expected[1] is None else pytest.approx(expected[1], rel=1e-3, abs=1e-3)), found


@pytest.mark.parametrize("noise", [0.0, NOISE, 1.0])
def test_same_optimizer_is_the_same_whatever_the_noise(tmp_path: Path, noise: float) -> None:
    reference, candidate = _dumped(tmp_path / "one", _adam()), _dumped(tmp_path / "other", _adam(foreach=True), noise)
    found = _checked(reference, candidate, CLIPPED)
    assert found is not None and found.is_same and found.steps == 3 and found.left < 1e-4, found


def test_norm_that_was_summed_in_fp32_is_no_weight_decay(tmp_path: Path) -> None:
    """Biases that begin at 0 are the sum of their updates: an error of the first one looked like weight decay."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        for module in model.children():
            assert isinstance(module, nn.Linear)
            nn.init.zeros_(module.bias)
        return _adam(weight_decay=0.0)(model)

    one = _dumped(tmp_path / "one", make, steps=2, norm_error=2e-4)
    check = _checked(one, _dumped(tmp_path / "other", make, NOISE, steps=2, norm_error=0.0), CLIPPED)
    assert check is not None and check.is_same and check.steps == 2


def test_updates_that_no_setting_explains_are_said_to_differ_alone(tmp_path: Path) -> None:
    def of_signs(model: nn.Module) -> torch.optim.Optimizer:
        def lose_sizes(*_: Any) -> None:
            for each in model.parameters():
                assert each.grad is not None
                each.grad.copy_(each.grad.sign())

        optimizer = _adam()(model)
        optimizer.register_step_pre_hook(lose_sizes)
        return optimizer

    found = _checked(_dumped(tmp_path / "one", _adam()), _dumped(tmp_path / "other", of_signs, NOISE), CLIPPED)
    assert found is not None and not found.is_same and found.other is None and found.steps == 2, found


def test_gradients_that_are_rounded_on_their_way_are_not_another_optimizer(tmp_path: Path) -> None:
    def of_bf16(model: nn.Module) -> torch.optim.Optimizer:
        def round_gradients(*_: Any) -> None:
            for each in model.parameters():
                assert each.grad is not None
                each.grad.copy_(each.grad.bfloat16())

        optimizer = _adam()(model)
        optimizer.register_step_pre_hook(round_gradients)
        return optimizer

    found = _checked(_dumped(tmp_path / "one", _adam()), _dumped(tmp_path / "other", of_bf16, NOISE), CLIPPED)
    assert found is not None and found.is_same and found.left_of_candidate > 10 * found.left, found


def test_nothing_is_said_where_the_reference_does_something_else(tmp_path: Path) -> None:
    sides = [_dumped(tmp_path / str(at), _adam(betas=(0.5, 0.9))) for at in range(2)]
    found = _checked(sides[0], sides[1], CLIPPED)
    assert found is None or found.steps == 1, "betas show in the second step"


def test_nothing_is_said_without_the_first_step(tmp_path: Path) -> None:
    sides = [_dumped(tmp_path / str(at), _adam()) for at in range(2)]
    for side in sides:
        shutil.rmtree(side / "dump" / "step-0000001")
    assert _checked(sides[0], sides[1], CLIPPED) is None


def test_settings_are_those_of_the_recipe_or_of_the_recording() -> None:
    ours = {"optim.optimizer": "auto", "optim.beta1": 0.9, "optim.beta2": 0.999, "optim.epsilon": 1e-8}
    assert adam_settings({**ours, "optim.max_grad_norm": 1}, {}) == SETTINGS
    assert adam_settings({**ours, "optim.optimizer": "muon"}, {}) is None
    groups = [{"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}]
    facts = {"optimizer": "AdamW", "optimizer_groups": groups, "max_grad_norm": 1.0}
    assert adam_settings(None, facts) == SETTINGS
    assert adam_settings(None, {**facts, "optimizer": "Adam"}) == AdamSettings(0.9, 0.999, 1e-8, 1.0, 0.1)
    assert adam_settings(None, {"optimizer": "AdamW"}) is None
    assert adam_settings(None, {**facts, "optimizer_groups": [{"betas": "x", "eps": None}]}) is None


def test_settings_that_one_side_does_not_name_are_not_compared() -> None:
    other = AdamSettings(0.9, 0.95, 1e-8, None)
    assert other_settings(SETTINGS, other) == {"beta2": (0.999, 0.95)}
