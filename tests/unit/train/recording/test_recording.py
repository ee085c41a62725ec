"""A loop that ascendtune did not write, recorded in this process."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad, clip_grad_norm_

import ascendtune.align
from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import compare_trainings
from ascendtune.check.align.training_record import read_training_record
from ascendtune.core.errors import InputError
from ascendtune.train.dump.whole_tensors import whole_tensors_of
from ascendtune.train.recording.recording import Recording
from ascendtune.train.recording.request import RecordRequest


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


def train(model: nn.Module, steps: int = 3, *, accumulate: int = 1, limit: float | None = None) -> list[float]:
    """Losses of `steps` steps of SGD; `limit` clips."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        total = 0.0
        for part in torch.randn(4, 4, generator=torch.Generator().manual_seed(step)).chunk(accumulate):
            loss = (model(part) - 1).square().mean() / accumulate
            loss.backward()
            total += loss.item()
        with torch.no_grad():
            model(torch.ones(1, 4))
        if limit is not None:
            clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_recorded_loop_computes_the_same_and_its_numbers_are_written(tmp_path: Path) -> None:
    expected = train(Net())
    model = Net()
    with ascendtune.align.record(model, steps="2-3", directory=tmp_path / "recorded"):
        found = train(model)
    assert found == expected
    metrics = lines(tmp_path / "recorded" / "metrics.jsonl")
    assert [each["step"] for each in metrics] == [1, 2, 3]
    assert [each["loss"] for each in metrics] == pytest.approx(expected, rel=1e-7)
    assert {each["learning_rate"] for each in metrics} == {0.1}
    facts = json.loads((tmp_path / "recorded" / "recorded.json").read_text())
    assert (facts["optimizer"], facts["world_size"], facts["format"]) == ("SGD", 1, 2)
    assert facts["fp32_products"] == {"matmul": "fp32", "conv": "fp32"}
    start = json.loads((tmp_path / "recorded" / "start_weights.json").read_text())
    assert set(start["parameters"]) == {"up.weight", "up.bias", "down.weight", "down.bias"}
    assert sorted(each.name for each in (tmp_path / "recorded" / "dump").iterdir()) == ["step-0000002", "step-0000003"]
    header, *rows = lines(tmp_path / "recorded" / "dump" / "step-0000002" / "rank_0.jsonl")
    assert header["writer"] == "ascendtune.align.record"
    assert [row["name"] for row in rows if row["phase"] == "forward" and row["slot"] == "output"] == ["up", "down", ""]
    assert {row["phase"] for row in rows} == {
        "forward", "backward", "loss", "gradient", "parameter_before", "parameter_after",
    }  # fmt: skip


def test_settings_of_the_optimizer_are_recorded(tmp_path: Path) -> None:
    model = Net()
    names = [[*model.up.parameters()], [*model.down.parameters()]]
    groups = [{"params": names[0], "weight_decay": 0.1}, {"params": names[1]}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.0)
    with ascendtune.align.record(model, steps="1", directory=tmp_path):
        model(torch.ones(2, 4)).sum().backward()
        clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    facts = json.loads((tmp_path / "recorded.json").read_text())
    assert (facts["optimizer"], facts["max_grad_norm"]) == ("AdamW", 0.5)
    assert [each["weight_decay"] for each in facts["optimizer_groups"]] == [0.1, 0.0]
    assert all((each["betas"], each["eps"]) == ([0.9, 0.95], 1e-6) for each in facts["optimizer_groups"])


def test_gradients_are_recorded_before_they_are_clipped(tmp_path: Path) -> None:
    model = Net()
    with ascendtune.align.record(model, steps=1, directory=tmp_path / "clipped"):
        train(model, 1, limit=1e-3)
    plain = Net()
    with ascendtune.align.record(plain, steps=1, directory=tmp_path / "plain"):
        train(plain, 1)

    def gradients(name: str) -> dict[str, str]:
        rows = lines(tmp_path / name / "dump" / "step-0000001" / "rank_0.jsonl")[1:]
        return {row["name"]: row["hash"] for row in rows if row["phase"] == "gradient"}

    assert gradients("clipped") == gradients("plain") and len(gradients("plain")) == 4
    clipped, free = (lines(tmp_path / name / "metrics.jsonl")[0]["grad_norm"] for name in ("clipped", "plain"))
    assert clipped == pytest.approx(free, rel=1e-6) and clipped > 1e-3


def test_norm_of_bf16_gradients_is_recorded_in_fp32(tmp_path: Path) -> None:
    model = Net().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ascendtune.align.record(model, steps=1, directory=tmp_path):
        model(torch.randn(4, 4, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    squares = [each.grad.double().square().sum() for each in model.parameters() if each.grad is not None]
    [line] = lines(tmp_path / "metrics.jsonl")
    assert line["grad_norm"] == pytest.approx(float(sum(squares)) ** 0.5, rel=1e-6)


def test_micro_batches_of_a_step_add_up(tmp_path: Path) -> None:
    expected = train(Net(), accumulate=2)
    model = Net()
    with ascendtune.align.record(model, steps=1, directory=tmp_path / "recorded"):
        train(model, accumulate=2)
    metrics = lines(tmp_path / "recorded" / "metrics.jsonl")
    assert [each["loss"] for each in metrics] == pytest.approx(expected, rel=1e-6)
    rows = lines(tmp_path / "recorded" / "dump" / "step-0000001" / "rank_0.jsonl")[1:]
    assert [row["micro_batch"] for row in rows if row["phase"] == "loss"] == [0, 1]


def test_steps_of_another_optimizer_do_not_count(tmp_path: Path) -> None:
    model, other = Net(), Net()
    with ascendtune.align.record(model, steps=1, directory=tmp_path / "recorded"):
        train(other, 2)
        train(model, 1)
    assert [each["step"] for each in lines(tmp_path / "recorded" / "metrics.jsonl")] == [1]


def test_everything_is_as_before_after_the_context(tmp_path: Path) -> None:
    before = torch.autograd.backward, clip_grad._clip_grads_with_norm_
    model = Net()
    with pytest.raises(KeyError), ascendtune.align.record(model, directory=tmp_path / "recorded"):
        model(torch.ones(2, 4)).sum().backward()
        raise KeyError
    assert before == (torch.autograd.backward, clip_grad._clip_grads_with_norm_)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    train(model)
    assert not (tmp_path / "recorded" / "dump").exists()


def test_recording_is_not_overwritten(tmp_path: Path) -> None:
    model = Net()
    with ascendtune.align.record(model, directory=tmp_path):
        train(model, 1)
    with pytest.raises(InputError) as caught, ascendtune.align.record(model, directory=tmp_path):
        pass
    assert caught.value.code == "path-exists"


@pytest.mark.parametrize("steps", ["", "0", "3-1", "1,,2", "one"])
def test_invalid_ranges_of_steps_are_refused(tmp_path: Path, steps: str) -> None:
    with pytest.raises(InputError) as caught, ascendtune.align.record(Net(), steps=steps, directory=tmp_path):
        pass
    assert caught.value.code == "invalid-value"


def test_gradients_that_a_closure_computes_are_those_of_its_step(tmp_path: Path) -> None:
    expected = train(Net())
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    with ascendtune.align.record(model, steps="1-3", directory=tmp_path):
        for step in range(3):

            def closure(step: int = step) -> torch.Tensor:
                optimizer.zero_grad()
                loss = (model(torch.randn(4, 4, generator=torch.Generator().manual_seed(step))) - 1).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)  # type: ignore[arg-type]
            norms.append(float(torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])))  # type: ignore[misc]
    metrics = lines(tmp_path / "metrics.jsonl")
    assert [each["loss"] for each in metrics] == pytest.approx(expected, rel=1e-7)
    assert [each["grad_norm"] for each in metrics] == pytest.approx(norms, rel=1e-6)


def test_two_optimizers_of_one_model_make_one_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Net()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model.up, model.down)]
    expected = []
    with ascendtune.align.record(model, steps="1", directory=tmp_path):
        for _ in range(3):
            loss = (model(torch.ones(2, 4)) - 1).square().mean()
            loss.backward()
            for each in optimizers:
                each.step()
                each.zero_grad()
            expected.append(loss.item())
    metrics = lines(tmp_path / "metrics.jsonl")
    assert [each["step"] for each in metrics] == [1, 2, 3]
    assert [each["loss"] for each in metrics] == pytest.approx(expected, rel=1e-7)
    assert caplog.text.count("several optimizers") == 1


def scaled_steps(model: nn.Module, *, overflow_at: int = -1) -> torch.amp.GradScaler:
    """Three steps with losses that a GradScaler scales by 1024."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024)
    for step in range(3):
        loss = (model(torch.randn(4, 4, generator=torch.Generator().manual_seed(step))) - 1).square().mean()
        scaler.scale(loss * (float("inf") if step == overflow_at else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return scaler


def test_scaled_loss_is_recorded_as_the_loop_computed_it(tmp_path: Path) -> None:
    plain, scaled = Net(), Net()
    with ascendtune.align.record(plain, steps="1-3", directory=tmp_path / "plain"):
        expected = train(plain)
    with ascendtune.align.record(scaled, steps="1-3", directory=tmp_path / "scaled"):
        scaled_steps(scaled)
    assert [each["loss"] for each in lines(tmp_path / "scaled" / "metrics.jsonl")] == pytest.approx(expected, rel=1e-7)
    files = [tmp_path / name / "dump" / "step-0000003" / "rank_0.jsonl" for name in ("plain", "scaled")]
    # A power of two changes no digit.
    one, other = ([{**row, "kind": ""} for row in lines(file)[1:]] for file in files)
    assert one == other


def test_gradients_of_a_scaled_loss_of_zero_are_recorded_as_zero(tmp_path: Path) -> None:
    model = Net()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024)
    with ascendtune.align.record(model, steps="1", directory=tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler.scale(model(torch.ones(4, 4)).sum() * 0).backward()
        scaler.step(optimizer)
    rows = lines(tmp_path / "dump" / "step-0000001" / "rank_0.jsonl")[1:]
    gradients = [row for row in rows if row["phase"] == "backward"]
    assert gradients and all(row["nan"] == 0 and row["l2"] == 0 for row in gradients)


def test_step_that_a_scaler_skips_is_a_step_without_an_update(tmp_path: Path) -> None:
    model = Net()
    with ascendtune.align.record(model, steps="1-3", directory=tmp_path):
        scaled_steps(model, overflow_at=1)
    metrics = lines(tmp_path / "metrics.jsonl")
    assert [each["step"] for each in metrics] == [1, 2, 3]
    assert metrics[1]["loss"] is None and metrics[1]["grad_norm"] is None and metrics[2]["loss"] is not None
    phases = [
        {row["phase"] for row in lines(tmp_path / "dump" / f"step-000000{step}" / "rank_0.jsonl")[1:]}
        for step in (1, 2, 3)
    ]
    assert "parameter_after" not in phases[1] and "parameter_after" in phases[0] & phases[2]


def test_compiled_model_is_recorded_eagerly(tmp_path: Path) -> None:
    plain, model = Net(), Net()
    expected = train(plain)
    compiled: Any = torch.compile(model, backend="eager")
    with ascendtune.align.record(compiled, steps="1", directory=tmp_path):
        assert train(compiled) == expected
    rows = lines(tmp_path / "dump" / "step-0000001" / "rank_0.jsonl")[1:]
    assert [row["name"] for row in rows if row["phase"] == "forward" and row["slot"] == "output"] == ["up", "down", ""]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("deepspeed.runtime.pipe.engine", "PipelineEngine"),
        ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"),
    ],
)
def test_model_of_flat_buffers_is_refused(tmp_path: Path, module: str, name: str) -> None:
    wrapper = type(name, (Net,), {"__module__": module})()
    with pytest.raises(InputError) as caught, ascendtune.align.record(wrapper, directory=tmp_path):
        pass
    assert caught.value.code == "model-not-recordable"


@pytest.mark.parametrize(("orders", "fine"), [([[0, 1, 2], [0]], True), ([[0, 2, 1]], False), ([], True)])
def test_engine_that_reads_other_weights_is_refused(orders: list[list[int]], fine: bool) -> None:
    """DeepSpeed's `round_robin_gradients` on several ranks."""
    engine = type("DeepSpeedEngine", (Net,), {"__module__": "deepspeed.runtime.engine"})()
    engine.optimizer = SimpleNamespace(round_robin_bit16_indices=orders)
    with nullcontext() if fine else pytest.raises(InputError):
        whole_tensors_of(engine)


def test_model_inside_an_engine_is_refused(tmp_path: Path) -> None:
    model = Net()
    model.up.weight.ds_id = 0  # type: ignore[attr-defined]
    with pytest.raises(InputError) as caught, ascendtune.align.record(model, directory=tmp_path):
        pass
    assert caught.value.code == "model-not-recordable" and "record(engine)" in caught.value.remedy


class FakeEngine(Net):
    """What recordings use of DeepSpeed's engine, at ZeRO 0: it clips, updates and skips in one method."""

    def __init__(self, accumulate: int = 1, scale: float = 1.0) -> None:
        super().__init__()
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        self.skipped_steps, self.accumulate = 0, accumulate
        self.optimizer.loss_scale = scale  # type: ignore[attr-defined]
        self._running_engine_backward = False

    def gradient_accumulation_steps(self) -> int:
        return self.accumulate

    def get_global_grad_norm(self) -> float | None:
        return None

    def backward(self, loss: torch.Tensor) -> None:
        self._running_engine_backward = True
        (loss / self.accumulate * self.optimizer.loss_scale).backward()  # type: ignore[attr-defined]
        self._running_engine_backward = False

    def _take_model_step(self) -> None:
        if any(not each.grad.isfinite().all() for each in self.parameters() if each.grad is not None):
            self.skipped_steps += 1
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()


FakeEngine.__module__, FakeEngine.__name__ = "deepspeed.runtime.engine", "DeepSpeedEngine"


def test_update_of_an_engine_ends_the_step_once(tmp_path: Path) -> None:
    engine = FakeEngine(accumulate=2)
    with ascendtune.align.record(engine, steps="1-2", directory=tmp_path):
        for step in range(3):
            for at in range(2):
                loss = (engine(torch.full((2, 4), float(step + at))) - 1).square().mean()
                if step == 1:
                    loss = loss * math.inf
                engine.backward(loss) if step else loss.backward()
            engine._take_model_step()
    assert "_take_model_step" not in vars(engine)
    metrics = lines(tmp_path / "metrics.jsonl")
    assert [each["step"] for each in metrics] == [1, 2, 3]
    assert metrics[1]["grad_norm"] is None and metrics[2]["grad_norm"] is not None
    plain = Net()
    expected = sum((plain(torch.full((2, 4), float(at))) - 1).square().mean().item() for at in range(2)) / 2
    assert metrics[0]["loss"] == pytest.approx(expected, rel=1e-6)
    phases = [
        {row["phase"] for row in lines(tmp_path / "dump" / f"step-000000{step}" / "rank_0.jsonl")[1:]}
        for step in (1, 2)
    ]
    assert "parameter_after" in phases[0] and "parameter_after" not in phases[1]


def test_second_training_is_not_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recording = Recording(RecordRequest(str(tmp_path), "1", "statistics"), [])
    with recording.active():
        train(Net(), 2)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with Recording(RecordRequest(str(tmp_path), "1", "statistics"), []).active():
        train(Net(), 1)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert "second training is not recorded" in caplog.text


@pytest.mark.parametrize(("is_autocast", "precision"), [(True, "bf16"), (False, "fp32")])
def test_precision_of_a_recording_is_that_of_its_outputs(tmp_path: Path, is_autocast: bool, precision: str) -> None:
    model = Net()
    with (
        ascendtune.align.record(model, steps="1", directory=tmp_path),
        torch.autocast("cpu", torch.bfloat16, enabled=is_autocast),
    ):
        train(model, 1)
    assert read_training_record(tmp_path).precision == precision


def test_weights_that_change_between_two_steps_are_named(tmp_path: Path) -> None:
    """By as little as no loss shows."""
    sides = []
    for name, factor in (("reference", 1.0), ("candidate", 1.0 + 1e-6)):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ascendtune.align.record(model, steps="1-4", directory=tmp_path / name):
            for step in range(1, 5):
                (model(torch.full((2, 4), float(step))) - 1).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if step == 2:
                    with torch.no_grad():
                        model.down.weight.mul_(factor)
        sides.append(read_training_record(tmp_path / name))
    found = compare_trainings(*sides, expected_noise(*sides))
    assert found.divergence is not None and found.dumps.place is not None
    place = found.dumps.place
    assert (place.stage, place.step, place.module) == ("update", 3, "down.weight")
    assert found.divergence.remedy is not None and "between the last update" in found.divergence.remedy
    same = compare_trainings(sides[1], sides[1], expected_noise(sides[1], sides[1]))
    assert same.divergence is None


def adversaries(models: dict[str, nn.Module], order: str, *, set_to_none: bool, is_detached: bool) -> dict[str, Any]:
    """Three steps of a GAN; of each model the losses of its steps. `order` is that in which they are computed."""
    optimizers = {name: torch.optim.SGD(each.parameters(), lr=0.1) for name, each in models.items()}
    generator, discriminator = models["generator"], models["discriminator"]
    losses: dict[str, Any] = {name: [] for name in models}
    for step in range(3):
        noise = torch.randn(4, 4, generator=torch.Generator().manual_seed(step))
        for name in order.split():
            optimizers[name].zero_grad(set_to_none=set_to_none)
            made = generator(noise)
            if name == "generator":
                parts = [(discriminator(made) - 1).square().mean()]
            else:
                real = (discriminator(torch.ones(4, 1)) - 1).square().mean()
                parts = [real, discriminator(made.detach() if is_detached else made).square().mean()]
            for part in parts:
                part.backward()
            optimizers[name].step()
            losses[name].append(sum(part.item() for part in parts))
    return losses


def make_adversaries() -> dict[str, nn.Module]:
    generator = Net()
    return {"generator": generator, "discriminator": nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))}


@pytest.mark.parametrize("order", ["discriminator generator", "generator discriminator"])
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("is_detached", [True, False])
@pytest.mark.parametrize("recorded", ["generator", "discriminator"])
def test_losses_of_the_other_model_of_a_gan_do_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, order: str, set_to_none: bool, is_detached: bool, recorded: str
) -> None:
    train_both = partial(adversaries, order=order, set_to_none=set_to_none, is_detached=is_detached)
    expected = train_both(make_adversaries())
    models = make_adversaries()
    with ascendtune.align.record(models[recorded], steps="1-3", directory=tmp_path):
        assert train_both(models) == expected
    metrics = lines(tmp_path / "metrics.jsonl")
    assert [each["loss"] for each in metrics] == pytest.approx(expected[recorded], rel=1e-6)
    for step in (1, 2, 3):
        rows = lines(tmp_path / "dump" / f"step-000000{step}" / "rank_0.jsonl")[1:]
        dumped = sum(row["mean"] for row in rows if row["phase"] == "loss")
        assert dumped == pytest.approx(expected[recorded][step - 1], rel=1e-6)
    assert caplog.text.count("another model is trained") == 1


def test_losses_of_both_models_are_told_apart_if_both_updates_come_last(tmp_path: Path) -> None:
    models = make_adversaries()
    generator, discriminator = models.values()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (discriminator, generator)]
    with ascendtune.align.record(generator, steps="1-2", directory=tmp_path):
        expected = []
        for _ in range(2):
            made = generator(torch.ones(2, 4))
            (discriminator(made.detach()).square().mean()).backward()
            loss = (discriminator(made) - 1).square().mean()
            loss.backward()
            for each in optimizers:
                each.step()
                each.zero_grad()
            expected.append(loss.item())
    assert [each["loss"] for each in lines(tmp_path / "metrics.jsonl")] == pytest.approx(expected, rel=1e-6)
