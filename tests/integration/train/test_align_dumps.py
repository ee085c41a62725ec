"""`ascendtune align` on runs that dumped their first steps: honest pairs are aligned, faults are named by module."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.train.test_align import zero_a_gradient

from ascendtune.check.align.dump_comparison import FirstDifference
from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.training_record import read_training_record

DUMPED = {"align": {"dump_steps": "1-3"}, "optim": {"max_steps": 4, "learning_rate": 1e-3}}


def align(reference: Path, candidate: Path) -> TrainingComparison:
    one, other = read_training_record(reference), read_training_record(candidate)
    return compare_trainings(one, other, expected_noise(one, other))


def place_of(found: TrainingComparison) -> FirstDifference:
    assert found.dumps.place is not None, found.findings
    return found.dumps.place


HONEST: dict[str, dict[str, Any]] = {
    "the same recipe again": {},
    "accumulation": {"batch": {"per_device": 2, "accumulate": 2}},
    "recomputed activations": {"memory": {"gradient_checkpointing": True}},
    "eager attention": {"model": {"attention": "eager"}},
    "bf16 beside fp32": {"precision": "bf16"},
}


@pytest.mark.parametrize("changes", HONEST.values(), ids=HONEST)
def test_honest_pair_is_aligned(train: Any, changes: dict[str, Any]) -> None:
    found = align(train(**DUMPED).run.path, train(**DUMPED, **changes).run.path)
    assert found.divergence is None, found.divergence
    assert found.dumps.steps == (1, 2, 3) and found.dumps.compared > 100
    assert {"backward", "update"} <= found.dumps.agreeing


def test_resumed_run_is_aligned_with_the_uninterrupted_one(train: Any, tmp_path: Path) -> None:
    changes = {"optim": {"max_steps": 5, "learning_rate": 1e-3}, "align": {"dump_steps": "3-5"}}
    run = train(**changes, checkpoint={"every_steps": 2, "keep": 5}).run
    shutil.copytree(run.path, tmp_path / "uninterrupted")
    resumed = train(**changes, checkpoint={"every_steps": 2, "resume": str(run.checkpoint(2))}).run
    assert [each["step"] for each in resumed.read_metrics()][-3:] == [3, 4, 5]
    assert len(resumed.read()["attempts"]) == 2 or resumed.path != run.path
    found = align(tmp_path / "uninterrupted", resumed.path)
    assert found.divergence is None, found.divergence
    assert found.dumps.steps == (3, 4, 5) and {"forward", "backward", "update"} <= found.dumps.agreeing
    assert {each.status for each in found.findings} <= {"ok", "unknown"}, found.findings


def test_lora_is_aligned_with_itself_recomputed(train: Any) -> None:
    lora = {"method": {"tuner": "lora", "lora": {"rank": 4}}}
    found = align(
        train(**DUMPED, **lora).run.path, train(**DUMPED, **lora, memory={"gradient_checkpointing": True}).run.path
    )
    assert found.divergence is None and "update" in found.dumps.agreeing


def test_ranks_are_aligned_with_one_and_with_each_other(train: Any, train_on_ranks: Any) -> None:
    one = train(**DUMPED).run.path
    ddp, fsdp = (
        train_on_ranks(2, **DUMPED, batch={"per_device": 2}, parallel={"strategy": each}).run.path
        for each in ("ddp", "fsdp")
    )
    for reference, candidate in ((one, ddp), (one, fsdp), (ddp, fsdp)):
        found = align(reference, candidate)
        assert found.divergence is None, found.divergence
        assert {"backward", "update"} <= found.dumps.agreeing
    assert align(ddp, ddp).dumps.replicas


def _config_changed(model: Path, place: Path, **changes: Any) -> Path:
    shutil.copytree(model, place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, **changes}))
    return place


FORWARD = {
    "RoPE base": ({"rope_parameters": {"rope_type": "default", "rope_theta": 5_000.0}}, "model.rotary_emb"),
    "RMSNorm epsilon": ({"rms_norm_eps": 1e-3}, "model.layers.0.input_layernorm"),
}


@pytest.mark.parametrize(("changes", "module"), FORWARD.values(), ids=FORWARD)
def test_first_module_that_parts_is_named(
    train: Any, tiny_model: Path, tmp_path: Path, changes: dict[str, Any], module: str
) -> None:
    other = _config_changed(tiny_model, tmp_path / "other", **changes)
    found = align(train(**DUMPED).run.path, train(**DUMPED, model={"path": str(other)}).run.path)
    place = place_of(found)
    assert (place.step, place.stage, place.module) == (1, "forward", module)


def _faulty_optimizer(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    make = torch.optim.AdamW.__init__

    def with_fault(self: Any, parameters: Any, **named: Any) -> None:
        groups = [{**each, **changes} if isinstance(each, dict) else each for each in parameters]
        make(self, groups, **{**named, **changes})

    monkeypatch.setattr(torch.optim.AdamW, "__init__", with_fault)


OPTIMIZERS = {
    "epsilon": ({"eps": 1e-6}, "step 1: epsilon: 1e-08 and 1e-06"),
    "weight decay": ({"weight_decay": 0.01}, "step 1: weight decay 0 and 0.01 (20 parameters: "),
}


@pytest.mark.parametrize(("changes", "said"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_update_that_parts_is_named_at_its_first_step(
    train: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    reference = train(**DUMPED, model={"attention": "eager"}).run.path
    _faulty_optimizer(monkeypatch, **changes)
    found = align(reference, train(**DUMPED, model={"attention": "eager"}).run.path)
    assert found.divergence is not None and found.divergence.code == "update"
    assert str(found.divergence.measured).startswith(said)


def test_zeroed_gradient_is_named_by_its_parameter(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = train(**DUMPED).run.path
    zero_a_gradient(monkeypatch)
    place = place_of(align(reference, train(**DUMPED).run.path))
    assert (place.step, place.stage, place.module) == (1, "backward", "model.layers.0.mlp.up_proj.weight")
