"""The time of a training's steps, taken from within its processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import nn

from ascendtune.check.comm import step_worker
from ascendtune.recipe.sections import OptimSection
from ascendtune.train.optimizer import make_optimizer


def _formula_is_not_asked(*_: Any) -> None:
    """In the place of a device's kernel."""


@pytest.mark.parametrize(
    "options",
    [{"optimizer": "adamw"}, {"optimizer": "muon"}, {"optimizer": "adamw", "update": _formula_is_not_asked}],
    ids=["adamw", "muon", "adamw of a kernel"],
)
def test_step_of_an_optimizer_that_is_made_of_others_counts_once(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    monkeypatch.setattr(step_worker, "_COLLECTIVES", ())
    monkeypatch.setattr(step_worker.StepTimer, "_end_of_step", lambda self: steps.append(1))
    update = options.pop("update", None)
    weights = [nn.Parameter(torch.randn(shape)) for shape in ((4, 4), (4,))]
    named = [(str(number), each) for number, each in enumerate(weights)]
    optimizer = make_optimizer(OptimSection(**options), named, 0.01, fused=False, update=update)
    with ExitStack() as hooks:
        for name in ("register_optimizer_step_pre_hook", "register_optimizer_step_post_hook"):
            monkeypatch.setattr(step_worker, name, _removed_with(hooks, getattr(step_worker, name)))
        world: Any = None
        step_worker.StepTimer(world).install()
        for _ in range(3):
            for each in weights:
                each.grad = torch.ones_like(each)
            optimizer.step()
    assert len(steps) == 3


def _removed_with(hooks: ExitStack, register: Callable[..., Any]) -> Callable[..., Any]:
    return lambda hook: hooks.callback(register(hook).remove)
