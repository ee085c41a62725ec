"""The loop on a model of one table: what is recorded of a run, without a model from a file and without processes."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.train.table_model import LENGTHS, FirstOfTwo, MakeLoop, Told, make_table_loop
from torch import nn
from torch.nn.functional import cross_entropy

from ascendtune.core.errors import CheckFailed, MachineError, RecipeError, Stopped
from ascendtune.core.interrupts import LAUNCHER_TOKEN
from ascendtune.data.plan import BatchPlan
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.sections import ProfileSection
from ascendtune.train.checkpoint.tensor_files import Staging
from ascendtune.train.counters import Counters
from ascendtune.train.evaluate import Evaluation
from ascendtune.train.loop import Loop
from ascendtune.train.profile import step_profile
from ascendtune.train.profile.step_profile import require_profiled_steps
from ascendtune.train.report.callback import Callback
from ascendtune.train.stop_request import StopRequest
from ascendtune.train.strategy.base import Strategy


@pytest.mark.parametrize("world_size", [1, 2])
def test_tokens_seen_is_the_sum_over_all_steps_and_ranks(make_loop: MakeLoop, world_size: int) -> None:
    loop, told = make_loop(FirstOfTwo() if world_size == 2 else None)
    assert loop.run() == "all steps done"
    tokens = [each["tokens"] for each in told.steps]
    # Two epochs, each with every token of every row, whichever rank has computed it.
    assert sum(tokens[:3]) == sum(tokens[3:]) == sum(LENGTHS)
    assert [each["tokens_seen"] for each in told.steps] == np.cumsum(tokens).tolist()
    assert loop.counters.tokens_seen == 2 * sum(LENGTHS)
    assert [each["labelled_tokens"] for each in told.steps[:3]] == [
        tokens - rows for tokens, rows in zip(tokens[:3], (3, 3, 1), strict=True)
    ]


def test_records_have_the_keys_that_readers_know(make_loop: MakeLoop) -> None:
    loop, told = make_loop(steps=2, eval={"every_steps": 1})
    loop.run()
    assert told.steps[0].keys() == {
        "attempt", "step", "epoch", "loss", "grad_norm", "learning_rate", "tokens", "labelled_tokens", "tokens_seen",
        "tokens_per_second", "mfu", "memory_peak_bytes", "batch_hash", "skipped_steps", "seconds",
    }  # fmt: skip
    assert told.steps[0]["seconds"].keys() >= {"step", "data", "forward", "backward", "optimizer", "collective"}
    assert told.steps[0]["memory_peak_bytes"] > 1 << 20 and told.steps[0]["tokens_per_second"] > 0
    assert told.evaluations[0].keys() == {
        "attempt", "step", "loss", "perplexity", "labelled_tokens", "data_hash", "seconds",
    }  # fmt: skip
    assert told.evaluations[0]["labelled_tokens"] == sum(LENGTHS) - len(LENGTHS)


def test_callback_that_changes_its_record_changes_no_other_ones(make_loop: MakeLoop) -> None:
    class Emptying(Callback):
        def on_step(self, record: dict[str, Any]) -> None:
            record["seconds"].clear()
            record.clear()

        def on_evaluation(self, record: dict[str, Any]) -> None:
            record.clear()

    loop, told = make_loop(steps=1, eval={"every_steps": 1})
    loop.recorder.callbacks.insert(0, Emptying())
    loop.run()
    assert told.steps[0]["step"] == 1 and told.steps[0]["seconds"]["step"] > 0
    assert told.evaluations[0]["step"] == 1


def test_a_record_of_two_steps_counts_the_tokens_of_both(make_loop: MakeLoop) -> None:
    loop, told = make_loop(track={"every_steps": 2})
    loop.run()
    assert [each["step"] for each in told.steps] == [2, 4, 6]
    assert told.steps[-1]["tokens_seen"] == sum(each["tokens"] for each in told.steps) == 2 * sum(LENGTHS)
    assert [each["epoch"] for each in told.steps] == pytest.approx([2 / 3, 4 / 3, 2], abs=1e-6)


def test_the_loss_of_a_step_is_the_mean_over_its_labelled_tokens(make_loop: MakeLoop) -> None:
    loop, told = make_loop(steps=1)
    table = loop.objective.model.weight.detach().double()
    total, count = 0.0, 0
    for (row,) in loop.batches.plan.batch(0):
        ids = loop.batches.dataset.row(row)[0].tolist()
        for before, after in pairwise(ids):
            total -= float(table[before].log_softmax(-1)[after])
            count += 1
    loop.run()
    assert told.steps[0]["loss"] == pytest.approx(total / count, rel=1e-6)


def test_evaluations_come_where_they_are_asked_for_and_after_the_last_step(make_loop: MakeLoop) -> None:
    loop, told = make_loop(steps=5, eval={"every_steps": 2})
    loop.run()
    assert [each["step"] for each in told.evaluations] == [2, 4, 5]
    losses = [each["loss"] for each in told.evaluations]
    assert losses == sorted(losses, reverse=True)
    assert (loop.counters.best_step, loop.counters.best_loss) == (5, losses[-1])
    assert loop.counters.evaluated_step == 5 and loop.counters.worse_evaluations == 0


def test_a_loss_that_is_not_a_number_ends_the_run_before_the_weights_change(make_loop: MakeLoop) -> None:
    loop, told = make_loop()
    weight = loop.objective.model.weight
    with torch.no_grad():
        weight[:, 0] = math.inf
    before = weight.detach().clone()
    with pytest.raises(CheckFailed) as wrong:
        loop.run()
    assert wrong.value.code == "loss-not-finite" and "step 1" in wrong.value.what and told.steps == []
    assert torch.equal(weight.nan_to_num(), before.nan_to_num())


def test_a_gradient_scaler_skips_gradients_that_overflow_and_no_loss_that_is_not_a_number(
    make_loops: MakeLoop,
) -> None:
    loop, told = make_loops()
    loop.scaler = torch.amp.GradScaler("cpu")
    weight = loop.objective.model.weight
    weight.register_hook(lambda gradient: gradient * math.inf if loop.phases.step == 2 else gradient)
    loop.run()
    assert [each["grad_norm"] is None for each in told.steps] == [False, True, False, False, False, False]
    assert [each["skipped_steps"] for each in told.steps] == [0, 1, 1, 1, 1, 1]
    for on_nan in ("stop", "dump"):
        loop, told = make_loops(on_nan=on_nan)
        loop.scaler = torch.amp.GradScaler("cpu")
        with torch.no_grad():
            loop.objective.model.weight[:, 0] = math.inf
        with pytest.raises(CheckFailed) as wrong:
            loop.run()
        assert wrong.value.code == "loss-not-finite" and told.steps == []


def test_overflows_between_two_records_are_counted(make_loop: MakeLoop) -> None:
    loop, told = make_loop(track={"every_steps": 2})
    loop.scaler = torch.amp.GradScaler("cpu")
    weight = loop.objective.model.weight
    weight.register_hook(lambda gradient: gradient * math.inf if loop.phases.step in (1, 3, 4) else gradient)
    loop.run()
    assert [(each["step"], each["skipped_steps"]) for each in told.steps][:2] == [(2, 1), (4, 3)]
    assert told.steps[-1]["skipped_steps"] == loop.counters.skipped_steps == 3


def test_overflows_that_a_chip_saturates_are_counted(make_loop: MakeLoop) -> None:
    """The scaler of torch_npu hears of them from a register of the chip: gradients and their norm are finite."""
    loop, told = make_loop()

    class Saturating(torch.amp.GradScaler):
        def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
            super().unscale_(optimizer)
            for found in self._found_inf_per_device(optimizer).values():
                found += float(loop.phases.step == 2)

    loop.scaler = Saturating("cpu")
    loop.run()
    assert [each["skipped_steps"] for each in told.steps] == [0, 1, 1, 1, 1, 1]
    assert None not in [each["grad_norm"] for each in told.steps]


def test_a_skipped_step_is_counted_and_changes_no_weight(make_loop: MakeLoop) -> None:
    loop, told = make_loop(steps=2, on_nan="skip")
    weight = loop.objective.model.weight
    with torch.no_grad():
        weight[:, 0] = math.inf
    before = weight.detach().clone()
    loop.run()
    assert [each["skipped_steps"] for each in told.steps] == [1, 2]
    assert [each["loss"] for each in told.steps] == [None, None]
    assert torch.equal(weight.nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_a_checkpoint_of_its_last_step(make_loop: MakeLoop, number: signal.Signals) -> None:
    loop, told = make_loop(track={"every_steps": 4})
    run = loop.run_directory

    def stop_after_two() -> None:
        if loop.counters.step == 2:
            loop.stop.signal_number = number

    loop.checkpointer.poll = stop_after_two
    with pytest.raises(Stopped) as stopped:
        loop.run()
    # Alone nothing has to be agreed, so that the next step is recorded, and is the last.
    assert [each["step"] for each in told.steps] == [3] and run.checkpoint_steps() == [3]
    assert stopped.value.exit_code == 128 + number and number.name in stopped.value.what
    assert stopped.value.where == str(run.checkpoint(3))


@pytest.mark.parametrize("strategy", [None, FirstOfTwo])
def test_a_signal_ends_an_evaluation_which_the_resumed_run_begins_with(
    make_loops: MakeLoop, monkeypatch: pytest.MonkeyPatch, strategy: type[Strategy] | None
) -> None:
    monkeypatch.setattr("ascendtune.train.loop._STEPS_TO_A_STOP", 1)
    changes = {"steps": 9, "track": {"every_steps": 4}, "eval": {"every_steps": 3}}
    loop, told = make_loops(*([strategy()] if strategy else []), **changes)
    seen: list[int] = []

    def stop_after_first_batch(done: int, _total: int) -> None:
        seen.append(done)
        if done == 1:
            loop.stop.signal_number = signal.SIGTERM

    told.on_evaluation_progress = stop_after_first_batch  # type: ignore[method-assign]
    with pytest.raises(Stopped) as stopped:
        loop.run()
    assert loop.run_directory.checkpoint_steps() == [3] and stopped.value.where == str(loop.run_directory.checkpoint(3))
    # Step 3 was not to be recorded, but a run begins again behind a record.
    assert [each["step"] for each in told.steps] == [3] and told.evaluations == [] and max(seen) < 6
    if strategy is not None:
        return  # The second rank, which would have written its part of the checkpoint, is none.
    again, told_again = make_loops(**changes)
    again.counters = again.recorder.counters = Counters.of(again.checkpointer.load(loop.run_directory.checkpoint(3)))
    again.run()
    assert [each["step"] for each in told_again.evaluations] == [3, 6, 9]


@pytest.mark.parametrize(("is_launched", "pause", "ends"), [(True, 0, False), (True, 3, True), (False, 0, True)])
def test_ctrl_c_that_reaches_a_rank_twice_is_one(
    is_launched: bool, pause: float, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun sends it to every process of a job, and the launcher passes it on."""
    monkeypatch.delenv(LAUNCHER_TOKEN, raising=False)
    if is_launched:
        monkeypatch.setenv(LAUNCHER_TOKEN, "0123")
    stop = StopRequest()
    with stop.listening("a checkpoint"):
        signal.raise_signal(signal.SIGINT)
        stop._since -= pause
        with pytest.raises(KeyboardInterrupt) if ends else nullcontext():
            signal.raise_signal(signal.SIGINT)
    assert stop.signal_number == signal.SIGINT


def test_message_of_a_hangup_says_that_the_run_ends_as_by_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("ascendtune.train.stop_request.say_in_handler", said.append)
    stop = StopRequest()
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with stop.listening("a checkpoint"):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert stop.signal_number == signal.SIGTERM
    assert said == ["SIGHUP, treated as SIGTERM: stopping, with a checkpoint (Ctrl-C again: at once)"]


def test_signal_after_a_failure_promises_no_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("ascendtune.train.stop_request.say_in_handler", said.append)
    stop = StopRequest()
    with stop.listening("a checkpoint"):
        stop.has_failed = True
        signal.raise_signal(signal.SIGTERM)
    assert stop.signal_number == signal.SIGTERM and not said


def test_signals_stay_with_the_caller_of_a_training_in_a_thread() -> None:
    def handlers() -> list[Any]:
        with StopRequest().listening("a checkpoint"):
            return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(handlers).result() == before
    assert all(each != other for each, other in zip(handlers(), before, strict=True))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(("every", "steps"), [(2, [2, 4, 6]), (4, [4, 6]), (6, [6]), (7, [])])
def test_checkpoints_come_at_their_steps_and_at_the_last(make_loop: MakeLoop, every: int, steps: list[int]) -> None:
    loop, _ = make_loop(steps=6, checkpoint={"every_steps": every, "keep": 1})
    saved: list[int] = []
    save = loop.checkpointer.save

    def noted(step: int, state: dict[str, Any], **options: Any) -> None:
        saved.append(step)
        save(step, state, **options)

    loop.checkpointer.save = noted
    loop.run()
    # Complete before the export begins.
    assert saved == steps and loop.run_directory.checkpoint_steps() == steps[-1:]


def test_last_step_has_a_checkpoint_if_it_is_the_best_and_none_is_scheduled(make_loop: MakeLoop) -> None:
    loop, _ = make_loop(steps=4, checkpoint={"every_steps": 9, "best": True}, eval={"every_steps": 9})
    loop.run()
    assert loop.counters.best_step == 4 and loop.run_directory.checkpoint_steps() == [4]


def test_early_stop_has_a_checkpoint_and_a_record_of_its_step(
    make_loops: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr("ascendtune.train.loop.evaluate", lambda *_: Evaluation(next(losses), {}, 1))
    evaluation = {"every_steps": 1, "early_stop": {"patience": 1}}
    changes: dict[str, Any] = {"steps": 9, "eval": evaluation, "checkpoint": {"every_steps": 9}}
    loop, told = make_loops(**changes, track={"every_steps": 100})
    loop.run()
    assert loop.run_directory.checkpoint_steps() == [2] and [each["step"] for each in told.steps] == [2]
    # With more patience the run goes on from there.
    again, told = make_loops(**{**changes, "eval": {"every_steps": 1, "early_stop": {"patience": 2}}})
    again.counters = again.recorder.counters = Counters.of(again.checkpointer.load(loop.run_directory.checkpoint(2)))
    assert again.run() == "no improvement in 2 evaluations; the best was step 1"
    assert [each["step"] for each in told.steps] == [3]


@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("fails", ["before writing", "while writing"])
def test_disk_without_room_for_the_last_checkpoint_does_not_keep_the_model_from_being_exported(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: str, best: bool
) -> None:
    loop, _ = make_loop(steps=4, checkpoint={"every_steps": 3, "best": best}, eval={"every_steps": 9})
    writes = Staging.write

    def write(staging: Staging, path: Path) -> str:
        if "step_4" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return writes(staging, path)

    if fails == "while writing":
        monkeypatch.setattr(Staging, "write", write)
    else:
        free = shutil.disk_usage(loop.run_directory.path)._replace(free=0)
        monkeypatch.setattr(
            shutil, "disk_usage", lambda _: free if loop.counters.step == 4 else free._replace(free=1 << 40)
        )
    assert loop.run() == "all steps done"
    assert loop.run_directory.checkpoint_steps() == [3] and not list(loop.run_directory.checkpoints.glob(".*"))
    assert "step 4, the last one, has no checkpoint" in caplog.text


def test_last_checkpoint_that_one_rank_alone_cannot_begin_ends_the_run(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for its part: a rank that went on to the export would leave them waiting."""
    loop, _ = make_loop(steps=4, checkpoint={"every_steps": 3})
    makes = Path.mkdir

    def mkdir(path: Path, *given: Any, **named: Any) -> None:
        if path.name == ".step_4.writing":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        makes(path, *given, **named)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(MachineError, match="input/output error"):
        loop.run()
    assert loop.run_directory.checkpoint_steps() == [3]


def weights_after(make_loop: MakeLoop, steps: int, **changes: Any) -> torch.Tensor:
    loop, _ = make_loop(steps=steps, **changes)
    loop.run()
    return loop.objective.model.weight.detach().clone()


@pytest.fixture
def make_loops(tmp_path_factory: pytest.TempPathFactory) -> MakeLoop:
    """Several loops in one test, each in a directory of its own."""
    return lambda *given, **changes: make_table_loop(tmp_path_factory.mktemp("loop"), *given, **changes)


@pytest.mark.parametrize("per_device", [2, 3])
def test_micro_batches_accumulate_to_the_same_weights(make_loops: MakeLoop, per_device: int) -> None:
    alone = weights_after(make_loops, 4)
    together = weights_after(make_loops, 4, batch={"per_device": per_device})
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-6)


def test_gradients_are_clipped_to_the_limit_before_the_step(make_loops: MakeLoop) -> None:
    rate, limit = 0.1, 1e-3
    optim = {"optimizer": "sgd", "scheduler": "constant", "warmup_ratio": 0.0, "weight_decay": 0.0}
    before = make_loops()[0].objective.model.weight.detach().clone()
    clipped = weights_after(make_loops, 1, optim={**optim, "max_grad_norm": limit})
    assert float((clipped - before).norm()) == pytest.approx(rate * limit, rel=1e-3)
    free, told = make_loops(steps=1, optim={**optim, "max_grad_norm": None})
    free.run()
    moved = float((free.objective.model.weight.detach() - before).norm())
    # The norm that is recorded is the one before clipping.
    assert told.steps[0]["grad_norm"] == pytest.approx(moved / rate, rel=1e-4) and moved > 10 * rate * limit


def test_the_learning_rate_of_a_step_is_the_one_recorded_for_it(make_loop: MakeLoop) -> None:
    loop, told = make_loop(steps=4, optim={"scheduler": "linear", "warmup_steps": 2})
    loop.run()
    assert [each["learning_rate"] for each in told.steps] == pytest.approx([0, 0.05, 0.1, 0.05])


def test_the_best_checkpoint_is_kept_beside_the_newest(make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([3.0, 1.0, 2.0, 4.0])
    monkeypatch.setattr("ascendtune.train.loop.evaluate", lambda *_: Evaluation(next(losses), {}, 1))
    every = {"every_steps": 1}
    loop, told = make_loop(steps=4, eval=every, checkpoint={**every, "keep": 1, "best": True})
    loop.run()
    assert loop.run_directory.checkpoint_steps() == [2, 4]
    assert (loop.counters.best_step, loop.counters.best_loss) == (2, 1.0)
    assert [each["loss"] for each in told.evaluations] == [3.0, 1.0, 2.0, 4.0]


def test_an_error_of_a_callback_is_not_one_of_its_checkpoint(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, told = make_loop(checkpoint={"every_steps": 2})

    def fail(step: int) -> None:
        raise ValueError(f"upload of step {step}")

    monkeypatch.setattr(told, "on_checkpoint", fail)
    with pytest.raises(ValueError, match="upload of step 2"):
        loop.run()
        loop.checkpointer.wait()
    assert loop.run_directory.checkpoint_steps() == [2]


def test_early_stop_comes_after_as_many_evaluations_as_the_recipe_says(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([3.0, 1.0, 2.0, 1.5])
    monkeypatch.setattr("ascendtune.train.loop.evaluate", lambda *_: Evaluation(next(losses), {}, 1))
    loop, _ = make_loop(steps=9, eval={"every_steps": 1, "early_stop": {"patience": 2}})
    assert loop.run() == "no improvement in 2 evaluations; the best was step 2"
    assert loop.counters.step == 4


def test_a_run_killed_after_its_early_stop_makes_no_further_step(
    make_loops: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([3.0, 2.9])
    monkeypatch.setattr("ascendtune.train.loop.evaluate", lambda *_: Evaluation(next(losses), {}, 1))
    evaluation = {"every_steps": 1, "early_stop": {"patience": 1, "min_improvement": 0.5}}
    changes: dict[str, Any] = {"steps": 9, "eval": evaluation, "checkpoint": {"best": True}}
    whole, _ = make_loops(**changes)
    reason = whole.run()
    whole.checkpointer.wait()
    # The lowest loss, though too little lower to go on for: its checkpoint is the last one.
    again, told = make_loops(**changes)
    again.counters = again.recorder.counters = Counters.of(again.checkpointer.load(whole.run_directory.checkpoint(2)))
    assert again.run() == reason == "no improvement of 0.5 in 1 evaluation; the best was step 2"
    assert told.steps == told.evaluations == []


def test_a_resumed_run_makes_the_steps_that_the_stopped_one_would_have_made(make_loops: MakeLoop) -> None:
    whole, told = make_loops(steps=6, checkpoint={"every_steps": 3})
    whole.run()
    again, told_again = make_loops(steps=6)
    state = again.checkpointer.load(whole.run_directory.checkpoint(3))
    again.counters = again.recorder.counters = Counters.of(state)
    again.run()
    exact = ("step", "loss", "grad_norm", "tokens_seen", "learning_rate")
    assert [[each[key] for key in exact] for each in told_again.steps] == [
        [each[key] for key in exact] for each in told.steps[3:]
    ]


def test_tokens_of_each_data_set_go_on_after_a_resume(make_loops: MakeLoop) -> None:
    def mixed(**changes: Any) -> tuple[Loop, Told]:
        loop, told = make_loops(steps=6, **changes)
        plan = BatchPlan(
            loop.batches.dataset.lengths, loop.batches.dataset.label_counts, capacity=None, global_batch=3, seed=1,
            datasets={"a": 3, "b": len(LENGTHS) - 3},
        )  # fmt: skip
        loop.batches = loop.recorder.batches = replace(loop.batches, plan=plan)
        return loop, told

    whole, told = mixed(checkpoint={"every_steps": 4})
    whole.run()
    # Two epochs.
    assert told.steps[-1]["tokens_of_datasets"] == {"a": 2 * sum(LENGTHS[:3]), "b": 2 * sum(LENGTHS[3:])}
    again, told_again = mixed(track={"every_steps": 2})
    state = again.checkpointer.load(whole.run_directory.checkpoint(4))
    again.counters = again.recorder.counters = Counters.of(json.loads(json.dumps(state)))
    again.run()
    assert told_again.steps[-1]["tokens_of_datasets"] == told.steps[-1]["tokens_of_datasets"]


def test_counters_leave_out_what_this_version_does_not_know() -> None:
    assert Counters.of({"step": 3, "of another version": 1}) == Counters(step=3)


def test_steps_with_a_checkpoint_are_recorded_and_so_are_evaluations_for_the_best(make_loop: MakeLoop) -> None:
    loop, told = make_loop(
        steps=6, track={"every_steps": 100}, checkpoint={"best": True, "every_steps": 4}, eval={"every_steps": 3}
    )
    loop.run()
    assert [each["step"] for each in told.steps] == [3, 4, 6]


def test_the_last_step_is_recorded_where_the_run_ends_before_its_schedule(make_loop: MakeLoop) -> None:
    loop, told = make_loop(steps=6, track={"every_steps": 100}, align={"stop_after": 2})
    assert loop.run() == "align.stop_after is 2"
    assert [each["step"] for each in told.steps] == [2]


class NotesSync(Strategy):
    """Notes for each micro-batch whether gradients would be summed over ranks."""

    def __init__(self) -> None:
        super().__init__(find_device())
        self.synced: list[bool] = []
        self._is_synced = True

    @contextmanager
    def no_sync(self, module: nn.Module) -> Iterator[None]:
        self._is_synced = False
        yield
        self._is_synced = True

    def backward(self, module: nn.Module, loss: torch.Tensor) -> None:
        self.synced.append(self._is_synced)
        super().backward(module, loss)


def test_gradients_are_summed_over_ranks_at_the_last_micro_batch_of_a_step_only(make_loop: MakeLoop) -> None:
    strategy = NotesSync()
    loop, _ = make_loop(strategy, steps=3)
    loop.run()
    # Two steps of three rows, one of one row.
    assert strategy.synced == [False, False, True, False, False, True, True]


def test_loss_of_an_evaluation_is_the_mean_over_all_labelled_tokens(make_loop: MakeLoop) -> None:
    loop, told = make_loop(steps=1)
    loop.run()
    dataset, scores = loop.batches.dataset, loop.objective.model.weight.detach()
    ids = [torch.from_numpy(dataset.row(row)[0].astype(np.int64)) for row in range(len(LENGTHS))]
    losses = torch.cat([cross_entropy(scores[row[:-1]], row[1:], reduction="none") for row in ids])
    assert told.evaluations[-1]["loss"] == pytest.approx(float(losses.mean()), rel=1e-6)


def test_a_run_for_its_profile_ends_after_the_last_profiled_step(make_loop: MakeLoop) -> None:
    # Of another rank: this one records nothing.
    loop, told = make_loop(profile={"steps": "2-3", "ranks": [7], "only": True})
    assert loop.run() == "the last profiled step is done (profile.only)"
    assert [each["step"] for each in told.steps] == [1, 2, 3]


@pytest.mark.parametrize(
    ("section", "is_reached"),
    [
        ({"steps": "6-9"}, True),
        ({"steps": "7-9"}, False),
        ({"steps": 2, "ranks": [1, 5]}, True),
        ({"steps": 2, "ranks": [2]}, False),
    ],
)
def test_a_profile_without_a_step_or_rank_of_the_run_is_an_error(section: dict[str, Any], is_reached: bool) -> None:
    with nullcontext() if is_reached else pytest.raises(RecipeError) as caught:
        require_profiled_steps(ProfileSection(**section, only=True), 6, FirstOfTwo())
    assert is_reached or caught.value.code == "nothing-to-profile"


def test_a_training_whose_profile_is_not_reached_continues_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(step_profile, "warn", warnings.append)
    require_profiled_steps(ProfileSection(steps=7), 6, FirstOfTwo())
    assert len(warnings) == 1
