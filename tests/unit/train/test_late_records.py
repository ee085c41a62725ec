"""On a device that computes beside the host a step is recorded when the next one has been launched."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.train.table_model import FirstOfTwo, MakeLoop, make_table_loop

from ascendtune.core.errors import CheckFailed, Stopped
from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.train.loop import Loop
from ascendtune.train.objective.base import LossOutput
from ascendtune.train.strategy.base import Strategy

SGD = {"optimizer": "sgd", "weight_decay": 0.0}
NEVER = {"every_steps": 100}


class LateDevice(CpuDevice):
    """The CPU, as a device that computes beside the host; it counts how often the host waits."""

    waits = 0

    @property
    def runs_asynchronously(self) -> bool:
        return True

    def copy_to_host(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        copied = tensor.clone()

        def wait() -> torch.Tensor:
            self.waits += 1
            return copied

        return wait


@pytest.fixture
def make_late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeLoop]:
    """Loops on such a device."""
    yield lambda *given, **changes: make_table_loop(
        tmp_path_factory.mktemp("late"), *(given or [Strategy(LateDevice())]), **changes
    )
    assert not [each for each in threading.enumerate() if each.name == "batches"]


def spoil(loop: Loop, *, from_step: int) -> None:
    """The loss is not a number from a step on."""
    forward = loop.objective.forward

    def spoiled(batch: Any) -> LossOutput:
        loss, extras = forward(batch)
        return LossOutput(loss * math.nan if loop.phases.step >= from_step else loss, extras)

    loop.objective.forward = spoiled  # type: ignore[method-assign]


def fail(loop: Loop, *, in_step: int) -> None:
    forward = loop.objective.forward

    def failing(batch: Any) -> LossOutput:
        if loop.phases.step == in_step:
            raise IndexError("an error of the model")
        return forward(batch)

    loop.objective.forward = failing  # type: ignore[method-assign]


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    of_machine = ("seconds", "tokens_per_second", "memory_peak_bytes", "mfu")
    return [{key: value for key, value in each.items() if key not in of_machine} for each in records]


@pytest.mark.parametrize("changes", [{}, {"track": {"every_steps": 2}}, {"on_nan": "skip"}, {"on_nan": "dump"}])
def test_late_records_are_those_of_a_device_that_the_host_waits_for(
    make_loop: MakeLoop, make_late: MakeLoop, changes: dict[str, Any]
) -> None:
    plain, expected = make_loop(**changes)
    late, found = make_late(**changes)
    plain.run()
    late.run()
    assert without_times(found.steps) == without_times(expected.steps)
    assert [each["loss"] for each in found.evaluations] == [each["loss"] for each in expected.evaluations]
    assert torch.equal(plain.objective.model.weight, late.objective.model.weight)


def test_step_is_recorded_after_the_launch_of_the_next_one(make_late: MakeLoop) -> None:
    loop, told = make_late(steps=4, eval=NEVER)
    written: list[tuple[int, int]] = []
    told.on_step = lambda record: written.append((record["step"], loop.counters.step))  # type: ignore[method-assign]
    loop.run()
    assert written == [(1, 2), (2, 3), (3, 4), (4, 4)]


def test_record_comes_before_checkpoint_and_evaluation_of_its_step(make_late: MakeLoop) -> None:
    loop, told = make_late(steps=5, eval={"every_steps": 3}, checkpoint={"every_steps": 2})
    events: list[tuple[str, int]] = []
    told.on_step = lambda record: events.append(("step", record["step"]))  # type: ignore[method-assign]
    told.on_evaluation = lambda record: events.append(("evaluation", record["step"]))  # type: ignore[method-assign]
    loop.checkpointer.save = lambda step, *_, **named: events.append(("checkpoint", step))
    loop.run()
    assert events == [
        ("step", 1), ("step", 2), ("checkpoint", 2), ("step", 3), ("evaluation", 3), ("step", 4), ("checkpoint", 4),
        ("step", 5), ("evaluation", 5), ("checkpoint", 5),
    ]  # fmt: skip


def test_loss_that_is_not_a_number_ends_the_run_one_step_later_without_a_record(make_late: MakeLoop) -> None:
    loop, told = make_late(eval=NEVER)
    spoil(loop, from_step=2)
    with pytest.raises(CheckFailed) as caught:
        loop.run()
    assert caught.value.code == "loss-not-finite" and "step 2" in caught.value.what
    assert [each["step"] for each in told.steps] == [1] and loop.counters.step == 3


def test_no_checkpoint_holds_a_step_whose_loss_is_not_a_number(make_late: MakeLoop) -> None:
    loop, told = make_late(eval=NEVER, checkpoint={"every_steps": 2})
    spoil(loop, from_step=2)
    with pytest.raises(CheckFailed):
        loop.run()
    assert loop.run_directory.checkpoint_steps() == [] and [each["step"] for each in told.steps] == [1]


def test_skipped_step_changes_no_weight_on_such_a_device(make_late: MakeLoop) -> None:
    loop, told = make_late(steps=3, on_nan="skip", eval=NEVER)
    before = loop.objective.model.weight.detach().clone()
    spoil(loop, from_step=1)
    loop.run()
    assert [each["skipped_steps"] for each in told.steps] == [1, 2, 3]
    assert torch.equal(loop.objective.model.weight, before)


def test_error_in_a_step_leaves_the_record_of_the_step_before(make_late: MakeLoop) -> None:
    loop, told = make_late(eval=NEVER)
    fail(loop, in_step=3)
    with pytest.raises(IndexError):
        loop.run()
    assert [each["step"] for each in told.steps] == [1, 2]


def test_error_that_follows_from_a_bad_loss_is_reported_as_the_bad_loss(make_late: MakeLoop) -> None:
    loop, _ = make_late(eval=NEVER)
    spoil(loop, from_step=2)
    fail(loop, in_step=3)
    with pytest.raises(CheckFailed) as caught:
        loop.run()
    assert "step 2" in caught.value.what


def test_signal_ends_the_run_of_one_rank_after_the_step_in_which_it_came(make_late: MakeLoop) -> None:
    loop, told = make_late(track=NEVER, eval=NEVER)
    loop.checkpointer.poll = lambda: setattr(loop.stop, "signal_number", signal.SIGTERM)
    with pytest.raises(Stopped):
        loop.run()
    assert [each["step"] for each in told.steps] == [2] and loop.run_directory.checkpoint_steps() == [2]


def test_signal_that_a_record_tells_ends_several_ranks_with_a_record_of_their_last_step(make_late: MakeLoop) -> None:
    strategy = FirstOfTwo()
    strategy.device = LateDevice()
    loop, told = make_late(strategy, track={"every_steps": 2}, eval=NEVER)
    saved: list[int] = []
    loop.checkpointer.save = lambda step, *_, **named: saved.append(step)
    loop.checkpointer.poll = lambda: setattr(loop.stop, "signal_number", signal.SIGTERM)
    with pytest.raises(Stopped):
        loop.run()
    # The record of step 2 says so when step 3 has been launched: on all ranks.
    assert [each["step"] for each in told.steps] == [2, 3] and saved == [3]


@pytest.mark.parametrize("device", [CpuDevice, LateDevice])
def test_signal_ends_several_ranks_within_ten_steps_where_records_are_rare(
    make_late: MakeLoop, device: type[CpuDevice]
) -> None:
    strategy = FirstOfTwo()
    strategy.device = device()
    loop, told = make_late(strategy, steps=40, track=NEVER, eval=NEVER)
    saved: list[int] = []
    loop.checkpointer.save = lambda step, *_, **named: saved.append(step)
    loop.checkpointer.poll = lambda: loop.counters.step == 12 and setattr(loop.stop, "signal_number", signal.SIGTERM)
    with pytest.raises(Stopped):
        loop.run()
    assert [each["step"] for each in told.steps] == saved == [21]


def test_host_waits_once_for_each_record_and_never_in_a_step(
    make_late: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, places = LateDevice(), set()

    def noted(name: str) -> Callable[..., Any]:
        method = getattr(torch.Tensor, name)

        def call(*given: Any, **named: Any) -> Any:
            code = sys._getframe(1).f_code
            places.add((Path(code.co_filename).name, code.co_name))
            return method(*given, **named)

        return call

    for name in ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, noted(name), raising=False)
    changes = {"batch": {"per_device": 1}, "optim": SGD, "track": {"every_steps": 3}, "eval": NEVER}
    loop, told = make_late(Strategy(device), steps=7, **changes)
    places.clear()
    loop.held_out = None
    loop.run()
    assert device.waits == len(told.steps) == 3
    # What `read` calls are the copies on the host.
    assert places == {("step_metrics.py", "read")}
