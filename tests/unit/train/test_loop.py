"""The loop on a model of one table: what is recorded of a run, without a model from a file and without processes."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ascendtune.core.errors import CheckFailed, Stopped
from ascendtune.core.rundir import RunDir
from ascendtune.data.plan import BatchPlan
from ascendtune.data.store import ShardWriter, TokenDataset
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.batch import BatchMaker, DeviceBatch
from ascendtune.train.checkpoint.checkpointer import Checkpointer
from ascendtune.train.evaluate import Evaluation
from ascendtune.train.loop import Loop
from ascendtune.train.objective.base import Objective, Outcome
from ascendtune.train.optimizer import make_optimizer
from ascendtune.train.parts import Counters, Parts
from ascendtune.train.phases import Phases
from ascendtune.train.precision import Precision
from ascendtune.train.report.callback import Callback
from ascendtune.train.schedule import Schedule
from ascendtune.train.stop_request import StopRequest
from ascendtune.train.strategy.base import Strategy

LENGTHS = [5, 9, 3, 8, 4, 7, 6]
"""Of seven rows: three steps of three rows an epoch, the last of one row."""
VOCABULARY = 12

MakeLoop = Callable[..., tuple[Loop, "Told"]]


class Told(Callback):
    """What the loop tells those who write it down."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []

    def on_step(self, record: dict[str, Any]) -> None:
        self.steps.append(record)

    def on_evaluation(self, record: dict[str, Any]) -> None:
        self.evaluations.append(record)


class NextToken(Objective):
    """Scores of the next token are a row of a table."""

    def forward(self, batch: DeviceBatch) -> Outcome:
        logits = self.model(batch.input_ids).flatten(0, 1).index_select(0, batch.target_index)
        return Outcome(cross_entropy(logits, batch.targets, reduction="sum"), {})


class FirstOfTwo(Strategy):
    """Rank 0 of two, whose other rank adds nothing."""

    def __init__(self) -> None:
        super().__init__(find_device())
        self.world_size = 2


def write_dataset(directory: Path) -> TokenDataset:
    directory.mkdir()
    random = np.random.default_rng(0)
    tokens = random.integers(0, VOCABULARY, sum(LENGTHS)).astype(np.int32)
    with ShardWriter(directory / "00000.arrow") as writer:
        writer.write(tokens, tokens, np.cumsum([0, *LENGTHS], dtype=np.int32))
    return TokenDataset.open(directory)


@pytest.fixture
def make_loop(tmp_path: Path) -> MakeLoop:
    def make(strategy: Strategy | None = None, steps: int = 6, **changes: Any) -> tuple[Loop, Told]:
        strategy = strategy or Strategy(find_device())
        sections = {"model": {"path": "none"}, "data": {"train": "none", "eval": "none"}, "precision": "fp32"}
        recipe = Recipe.check({**sections, **changes})
        run = RunDir(tmp_path / "run")
        run.create("", {}, {})
        dataset = write_dataset(tmp_path / "tokens")
        precision = Precision("fp32", "fp32", "asked for", "cpu")
        torch.manual_seed(0)
        objective = NextToken(nn.Embedding(VOCABULARY, VOCABULARY))
        optimizer = make_optimizer(recipe.optim, objective.named_parameters(), 0.1, fused=False)
        batches = BatchMaker(dataset, strategy.device, packed=False, pad_id=0)
        told = Told()
        parts = Parts(
            recipe=recipe, run=run, attempt=1, strategy=strategy, precision=precision,
            objective=objective, module=objective, optimizer=optimizer,
            schedule=Schedule(recipe.optim, 0.1, steps),
            dataset=dataset,
            plan=BatchPlan(dataset.lengths, dataset.label_counts, capacity=None, global_batch=3, seed=1),
            batches=batches, per_device=1, total_steps=steps, flops_per_token=1.0,
            evaluation=Evaluation(dataset, strategy, precision, batches=batches, capacity=None, per_device=1),
            checkpointer=Checkpointer(run, strategy, strategy.content(objective, optimizer), keep=1),
            checkpoint_every=1000, callbacks=[told], activations=nullcontext, phases=Phases(None), stop=StopRequest(),
        )  # fmt: skip
        return Loop(parts, Counters()), told

    return make


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
    assert told.evaluations[0].keys() == {"attempt", "step", "loss", "labelled_tokens", "seconds"}
    assert told.evaluations[0]["labelled_tokens"] == sum(LENGTHS) - len(LENGTHS)


def test_a_record_of_two_steps_counts_the_tokens_of_both(make_loop: MakeLoop) -> None:
    loop, told = make_loop(track={"every_steps": 2})
    loop.run()
    assert [each["step"] for each in told.steps] == [2, 4, 6]
    assert told.steps[-1]["tokens_seen"] == sum(each["tokens"] for each in told.steps) == 2 * sum(LENGTHS)
    assert [each["epoch"] for each in told.steps] == pytest.approx([2 / 3, 4 / 3, 2], abs=1e-6)


def test_the_loss_of_a_step_is_the_mean_over_its_labelled_tokens(make_loop: MakeLoop) -> None:
    loop, told = make_loop(steps=1)
    table = loop.parts.objective.model.weight.detach().double()
    total, count = 0.0, 0
    for (row,) in loop.parts.plan.batch(0):
        ids = loop.parts.dataset.row(row)[0].tolist()
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
    weight = loop.parts.objective.model.weight
    with torch.no_grad():
        weight[:, 0] = math.inf
    before = weight.detach().clone()
    with pytest.raises(CheckFailed, match="not a number") as wrong:
        loop.run()
    assert "step 1" in wrong.value.what and told.steps == []
    assert torch.equal(weight.nan_to_num(), before.nan_to_num())


def test_a_skipped_step_is_counted_and_changes_no_weight(make_loop: MakeLoop) -> None:
    loop, told = make_loop(steps=2, on_nan="skip")
    weight = loop.parts.objective.model.weight
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
    run = loop.parts.run

    def stop_after_two() -> None:
        if loop.counters.step == 2:
            loop.parts.stop.signal_number = number

    loop.parts.checkpointer.poll = stop_after_two
    with pytest.raises(Stopped) as stopped:
        loop.run()
    # Alone nothing has to be agreed, so that the next step is recorded, and is the last.
    assert [each["step"] for each in told.steps] == [3] and run.checkpoint_steps() == [3]
    assert stopped.value.exit_code == 128 + number and number.name in stopped.value.what
    assert stopped.value.where == str(run.checkpoint(3))


def test_checkpoints_come_at_their_steps_and_not_at_the_last(make_loop: MakeLoop) -> None:
    loop, _ = make_loop(steps=6)
    loop.parts.checkpoint_every = 2
    saved: list[int] = []
    save = loop.parts.checkpointer.save

    def noted(step: int, state: dict[str, Any]) -> None:
        saved.append(step)
        save(step, state)

    loop.parts.checkpointer.save = noted
    loop.run()
    loop.parts.checkpointer.wait()
    assert saved == [2, 4] and loop.parts.run.checkpoint_steps() == [4]


def test_steps_with_a_checkpoint_are_recorded_and_so_are_evaluations_for_the_best(make_loop: MakeLoop) -> None:
    loop, told = make_loop(steps=6, track={"every_steps": 100}, checkpoint={"best": True}, eval={"every_steps": 3})
    loop.parts.checkpoint_every = 4
    loop.run()
    assert [each["step"] for each in told.steps] == [3, 4, 6]


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

    def backward(self, loss: torch.Tensor) -> None:
        self.synced.append(self._is_synced)
        super().backward(loss)


def test_gradients_are_summed_over_ranks_at_the_last_micro_batch_of_a_step_only(make_loop: MakeLoop) -> None:
    strategy = NotesSync()
    loop, _ = make_loop(strategy, steps=3)
    loop.run()
    # Two steps of three rows, one of one row.
    assert strategy.synced == [False, False, True, False, False, True, True]


def test_loss_of_an_evaluation_is_the_mean_over_all_labelled_tokens(make_loop: MakeLoop) -> None:
    loop, told = make_loop(steps=1)
    loop.run()
    dataset, scores = loop.parts.dataset, loop.parts.objective.model.weight.detach()
    ids = [torch.from_numpy(dataset.row(row)[0].astype(np.int64)) for row in range(len(LENGTHS))]
    losses = torch.cat([cross_entropy(scores[row[:-1]], row[1:], reduction="none") for row in ids])
    assert told.evaluations[-1]["loss"] == pytest.approx(float(losses.mean()), rel=1e-6)
