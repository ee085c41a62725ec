"""`ascendtune align` on real runs: honest pairs are aligned, and each planted fault is named by stage and step."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.training_record import read_training_record
from ascendtune.core.errors import NoVerdict

Align = Callable[..., TrainingComparison]


def align(reference: Path, candidate: Path) -> TrainingComparison:
    one, other = read_training_record(reference), read_training_record(candidate)
    return compare_trainings(one, other, expected_noise(one, other))


def parted(comparison: TrainingComparison) -> tuple[str, int | None] | None:
    return (comparison.divergence.code, comparison.step) if comparison.divergence else None


HONEST: dict[str, dict[str, Any]] = {
    "the same recipe again": {},
    "accumulation": {"batch": {"per_device": 2, "accumulate": 2}},
    "recomputed activations": {"memory": {"gradient_checkpointing": True}},
    "eager attention": {"model": {"attention": "eager"}},
    "bf16 beside fp32": {"precision": "bf16"},
}


@pytest.mark.parametrize("changes", HONEST.values(), ids=HONEST)
def test_honest_pair_is_aligned(train: Any, changes: dict[str, Any]) -> None:
    found = align(train().run.path, train(**changes).run.path)
    assert parted(found) is None, found.divergence
    assert {each.status for each in found.findings} <= {"ok", "unknown"}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_are_aligned_with_one(train: Any, train_on_ranks: Any, strategy: str) -> None:
    ranks = train_on_ranks(2, batch={"per_device": 2}, parallel={"strategy": strategy})
    found = align(train().run.path, ranks.run.path)
    assert parted(found) is None, found.divergence
    assert found.findings[-1].measured == "1 and 2 ranks, and the losses agree"


def test_other_thread_count_is_aligned(train: Any) -> None:
    reference, threads = train(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert parted(align(reference.run.path, train().run.path)) is None
    finally:
        torch.set_num_threads(threads)


def test_unstable_training_that_amplifies_rounding_is_aligned(train: Any) -> None:
    unstable = {"optim": {"learning_rate": 1e-2, "max_steps": 60}}
    found = align(train(**unstable).run.path, train(**unstable, batch={"per_device": 2, "accumulate": 2}).run.path)
    assert parted(found) is None, found.divergence


ASKED = {
    "other seed": ({"seed": 7}, "question"),
    "other learning rate": ({"optim": {"learning_rate": 2e-3}}, "question"),
    "weight decay": ({"optim": {"weight_decay": 0.1}}, "question"),
    "LoRA scale": ({"method": {"lora": {"alpha": 64}}}, "question"),
}


@pytest.mark.parametrize(("changes", "stage"), ASKED.values(), ids=ASKED)
def test_other_recipe_is_named(train: Any, changes: dict[str, Any], stage: str) -> None:
    method = {"method": {"tuner": "lora", "lora": {"rank": 4, "alpha": 8}}} if "method" in changes else {}
    merged = {**method, **changes}
    if method:
        merged["method"] = {"tuner": "lora", "lora": {"rank": 4, "alpha": 64}}
    found = align(train(**method).run.path, train(**merged).run.path)
    assert parted(found) is not None and parted(found)[0] == stage  # type: ignore[index]


def test_changed_row_is_found_at_its_step(train: Any, rows: Path, tmp_path: Path) -> None:
    lines = rows.read_text().splitlines()
    row = json.loads(lines[40])
    row["messages"][-1]["content"] += " tips"
    changed = tmp_path / "changed.jsonl"
    changed.write_text("\n".join([*lines[:40], json.dumps(row), *lines[41:]]) + "\n")
    reference, candidate = train(), train(data={"train": str(changed)})
    found = align(reference.run.path, candidate.run.path)
    hashes = zip(reference.curve("batch_hash"), candidate.curve("batch_hash"), strict=True)
    step = next(number for number, (ours, other) in enumerate(hashes, 1) if ours != other)
    assert parted(found) == ("data", step)


def _copy_of(model: Path, place: Path) -> Path:
    shutil.copytree(model, place)
    return place


def test_perturbed_weights_are_named_before_the_first_step(train: Any, tiny_model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    other = _copy_of(tiny_model, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    name = next(each for each in weights if "layers.1.mlp.down_proj" in each)
    weights[name] *= 1 + 1e-3
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    found = align(train().run.path, train(model={"path": str(other)}).run.path)
    assert parted(found) == ("start", 1) and found.divergence is not None
    assert "model.layers.1.mlp.down_proj.weight" in found.divergence.measured


CONFIGS = {
    "RoPE base": {"rope_parameters": {"rope_type": "default", "rope_theta": 5_000.0}},
    "RMSNorm epsilon": {"rms_norm_eps": 1e-3},
}


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_other_config_parts_the_first_loss(
    train: Any, tiny_model: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    other = _copy_of(tiny_model, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, **changes}))
    found = align(train().run.path, train(model={"path": str(other)}).run.path)
    assert parted(found) == ("forward", 1)


def test_zeroed_gradient_of_a_layer_parts_the_first_gradient(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = train()
    zero_a_gradient(monkeypatch)
    found = align(reference.run.path, train().run.path)
    assert found.divergence is not None and found.divergence.code == "backward"


OPTIMIZERS = {"epsilon": {"eps": 1e-6}, "beta2": {"betas": (0.9, 0.95)}, "weight decay": {"weight_decay": 0.01}}


@pytest.mark.parametrize("changes", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizer_that_does_not_do_as_asked_parts_the_updates(
    train: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    reference = train()
    make = torch.optim.AdamW.__init__

    def with_fault(self: Any, parameters: Any, **named: Any) -> None:
        groups = [{**each, **changes} if isinstance(each, dict) else each for each in parameters]
        make(self, groups, **{**named, **changes})

    monkeypatch.setattr(torch.optim.AdamW, "__init__", with_fault)
    found = align(reference.run.path, train().run.path)
    assert found.divergence is not None and found.divergence.code in ("update", "later"), found.findings
    assert found.step is not None and found.step <= 6


def test_nan_at_one_step_is_named(train: Any, tmp_path: Path) -> None:
    run = train().run.path
    other = _copy_of(run, tmp_path / "nan")
    lines = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    lines[11]["loss"] = None
    (other / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert parted(align(run, other)) == ("later", 12)


def test_loss_that_is_never_a_number_parts_at_step_one(train: Any, tmp_path: Path) -> None:
    run = train().run.path
    other = _copy_of(run, tmp_path / "nan")
    lines = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    (other / "metrics.jsonl").write_text("".join(json.dumps({**each, "loss": None}) + "\n" for each in lines))
    assert parted(align(run, other)) == ("forward", 1)
    with pytest.raises(NoVerdict) as caught:
        align(other, other)
    assert caught.value.code == "no-common-steps"


def test_sparse_records_of_a_run_are_means_over_its_tokens(train: Any) -> None:
    found = align(train(track={"every_steps": 5}).run.path, train().run.path)
    assert parted(found) is None and found.pair.steps.tolist() == [5, 10, 15, 20]
    assert float(found.pair.difference.max()) < 1e-6


def _exported(run: Any, place: Path, kind: str) -> Path:
    """The run's losses as another trainer writes them, rounded to four places."""
    records = list(run.read_metrics())
    if kind == "trainer_state.json":
        history = [{"step": each["step"], "loss": round(each["loss"], 4)} for each in records]
        (place / kind).write_text(json.dumps({"log_history": [*history, {"step": 20, "eval_loss": 1.0}]}))
    elif kind == "trainer_log.jsonl":
        lines = [{"current_steps": each["step"], "total_steps": 20, "loss": round(each["loss"], 4)} for each in records]
        (place / kind).write_text("".join(json.dumps(each) + "\n" for each in lines))
    elif kind == "wandb.csv":
        with (place / kind).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["Step", "my-run - train/loss", "my-run - train/loss__MIN"])
            writer.writerows((each["step"], each["loss"], 0) for each in records)
    return place / kind


@pytest.mark.parametrize("kind", ["trainer_state.json", "trainer_log.jsonl", "wandb.csv"])
def test_log_of_another_trainer_is_compared(train: Any, tmp_path: Path, kind: str) -> None:
    reference = _exported(train().run, tmp_path, kind)
    assert parted(align(reference, train().run.path)) is None
    faster = align(reference, train(optim={"learning_rate": 2e-3}).run.path)
    assert faster.divergence is not None and faster.divergence.code in ("update", "later")


def test_mean_over_ten_steps_is_held_against_single_steps(train: Any, tmp_path: Path) -> None:
    run = train()
    losses = run.losses()
    history = [{"step": end, "loss": round(sum(losses[end - 10 : end]) / 10, 4)} for end in (10, 20)]
    log = tmp_path / "trainer_state.json"
    log.write_text(json.dumps({"log_history": history}))
    found = align(log, run.run.path)
    assert parted(found) is None and len(found.pair.steps) == 2


def test_tensorboard_events_are_compared(train: Any) -> None:
    run = train(track={"tensorboard": True}).run.path
    found = align(run / "tensorboard", run)
    assert parted(found) is None and len(found.pair.steps) == 20


def zero_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one weight of each model that is loaded from here on have a gradient of zeros."""
    from transformers import AutoModelForCausalLM

    load = AutoModelForCausalLM.from_pretrained

    def with_fault(*args: Any, **named: Any) -> Any:
        loaded = load(*args, **named)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model.get_parameter("model.layers.0.mlp.up_proj.weight").register_hook(torch.zeros_like)
        return loaded

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", with_fault)
