"""Faults that the rounding of bf16 hides in single elements, from dumps of three steps; honest pairs are aligned."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.training_record import read_training_record
from bare_loop import Bare, model_of

DECLARED = {"optimizer_groups": [{"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}], "max_grad_norm": None}
"""Of both sides, whatever they do."""


def _eager() -> nn.Module:
    return model_of()


def _fused() -> nn.Module:
    return model_of("sdpa")


REFERENCE = Bare(model=_eager, autocast=torch.bfloat16)
CANDIDATE = replace(REFERENCE, model=_fused)
"""An honest one: another attention."""


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _trained(REFERENCE, tmp_path_factory.mktemp("bf16") / "reference")


def _trained(bare: Bare, directory: Path) -> Path:
    facts = bare.run(directory) / "recorded.json"
    facts.write_text(json.dumps({**json.loads(facts.read_text()), **DECLARED}))
    return directory


def _aligned(reference: Path, candidate: Path) -> TrainingComparison:
    one, other = read_training_record(reference), read_training_record(candidate)
    return compare_trainings(one, other, expected_noise(one, other))


def _adam(kind: type[torch.optim.Adam] = torch.optim.AdamW, **changes: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: kind(parameters, **{"lr": 1e-3, "weight_decay": 0.01, **changes})


def _scaled(name: str, factor: float) -> Callable[[nn.Module], object]:
    return lambda model: model.get_submodule(name).register_forward_hook(lambda *call: call[-1] * factor)


@pytest.mark.parametrize(
    ("changes", "step", "stage", "word"),
    [
        ({"optimizer": _adam(eps=1e-6)}, 1, "update", "epsilon: 1e-08 and 1e-06"),
        ({"optimizer": _adam(betas=(0.9, 0.99))}, 2, "update", "beta2: 0.999 and 0.99"),
        ({"optimizer": _adam(weight_decay=0.0)}, 1, "update", "weight decay 0.01 and"),
        ({"optimizer": _adam(torch.optim.Adam)}, 1, "update", "added to the gradient"),
        ({"edit": _scaled("model.layers.2.mlp", 0.94)}, 1, "forward", "layers.2"),
    ],
    ids=["epsilon", "beta2", "decay", "L2", "scaled"],
)
def test_small_fault_is_named_in_bf16(
    reference: Path, tmp_path: Path, changes: dict[str, Any], step: int, stage: str, word: str
) -> None:
    found = _aligned(reference, _trained(replace(CANDIDATE, **changes), tmp_path / "candidate"))
    assert found.divergence is not None and (found.step, found.divergence.code) == (step, stage), found.findings
    assert word in found.divergence.measured, found.divergence


@pytest.mark.parametrize(
    "candidate",
    [
        CANDIDATE,
        replace(CANDIDATE, accumulate=4),
        replace(CANDIDATE, autocast=None),
        replace(CANDIDATE, is_packed=True, model=_eager),
        replace(CANDIDATE, optimizer=_adam(foreach=True)),
    ],
    ids=["attention", "accumulation", "fp32", "packed", "foreach"],
)
def test_honest_pair_is_aligned_and_its_optimizers_are_found_to_be_the_same(
    reference: Path, tmp_path: Path, candidate: Bare
) -> None:
    found = _aligned(reference, _trained(candidate, tmp_path / "candidate"))
    assert found.divergence is None and not found.hints, found.findings
    assert {each.status for each in found.findings} <= {"ok", "unknown"}, found.findings
    assert found.dumps.adam is not None and found.dumps.adam.is_same and found.dumps.adam.steps == 3
