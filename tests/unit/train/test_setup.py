"""The loop as setup makes it from a run directory: equal and different on ranks, and what it takes up again."""

from __future__ import annotations

import json
import logging
import shutil
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ascendtune.core.errors import MachineError, RecipeError
from ascendtune.core.rundir import RunDir
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.changes import ResumeOptions
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import model_flops
from ascendtune.train.evaluate import Evaluation
from ascendtune.train.loop import Loop
from ascendtune.train.phases import Phases
from ascendtune.train.prepare import prepare_run
from ascendtune.train.report.metrics_writer import MetricsWriter
from ascendtune.train.setup import set_up
from ascendtune.train.strategy.base import Strategy

ROWS = 9
Usage = namedtuple("Usage", "total used free")

MakeLoop = Callable[..., Loop]


class RankOf(Strategy):
    """One of several ranks, that sums over itself alone."""

    def __init__(self, rank: int) -> None:
        super().__init__(find_device())
        self.rank = rank


@pytest.fixture
def start(tiny_model: Path, tmp_path: Path) -> Iterator[MakeLoop]:
    """A start on a recipe, by a rank: the same recipe goes on in the same run directory."""
    rows = tmp_path / "rows.jsonl"
    turns = [{"role": "user", "content": "capital of France?"}, {"role": "assistant", "content": "It is Paris."}]
    rows.write_text((json.dumps({"messages": turns}) + "\n") * ROWS)
    with torch.random.fork_rng(devices=[]), ExitStack() as held:

        def make(
            rank: int = 0,
            resume_from: Path | None = None,
            record: dict[str, Any] | None = None,
            allow_change: Sequence[str] = (),
            **changes: Any,
        ) -> Loop:
            values = {
                "run_dir": str(tmp_path / "run"),
                "model": {"path": str(tiny_model)},
                "data": {"train": str(rows), "packing": False, "max_length": 64},
                "batch": {"per_device": 2},
                "precision": "fp32",
                "track": {"tensorboard": False},
                "checkpoint": {"every_steps": 1, "keep": 9, "best": False},
            }
            recipe = Recipe.check({**values, **changes})
            ready = prepare_run(recipe, {}, resume_options=ResumeOptions(allow_change))
            assert ready.run is not None and ready.claim is not None
            ready.claim.release()
            record = record or ready.run.read() | ({"resume_from": str(resume_from)} if resume_from else {})
            loop = set_up(ready.run, record, recipe, RankOf(rank), ready.prepared, Phases(None), held)
            loop.recorder.callbacks.clear()
            return loop

        yield make


@pytest.mark.parametrize(
    ("optim", "said"),
    [
        ({"max_steps": 3, "warmup_steps": 10}, "reaches 0.001, and that of the last step is 0.0002"),
        # The single step has a rate of 0.
        ({"max_steps": 1, "warmup_ratio": 0.03}, "reaches 0.001, and that of the last step is 0."),
        ({"max_steps": 3, "warmup_steps": 2}, ""),
    ],
)
def test_a_run_that_ends_within_its_warm_up_is_told(
    start: MakeLoop, optim: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    start(optim={"learning_rate": 1e-3, **optim})
    assert ("within its warm-up" in caplog.text) == bool(said) and said in caplog.text


def test_disk_without_space_for_the_run_is_told_before_the_first_step(
    start: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, 0))
    with pytest.raises(MachineError) as caught:
        start()
    assert caught.value.code == "disk-space-missing"


def test_space_is_asked_for_checkpoints_of_evaluations(
    start: MakeLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Enough for the model, not for a checkpoint with what is kept free beside it.
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, 12 << 20))
    rarely = {"every_steps": 1000, "keep": 1}
    evaluates = {"eval_rows": 2, "packing": False, "max_length": 64}
    rows = str(tmp_path / "rows.jsonl")
    start(data={"train": rows, **evaluates}, checkpoint={**rarely, "resume": "never"})
    with pytest.raises(MachineError) as caught:
        start(data={"train": rows, **evaluates}, checkpoint={**rarely, "best": True, "resume": "never"})
    assert caught.value.code == "disk-space-missing"


LORA = {"method": {"tuner": "lora", "lora": {"rank": 4, "dropout": 0.5}}}


def test_ranks_begin_with_equal_weights_and_different_dropout(start: MakeLoop) -> None:
    of_ranks = []
    for rank in (0, 1):
        loop = start(rank, **LORA)
        weights = [each.detach().clone() for each in loop.objective.parameters()]
        with torch.no_grad():
            # A new adapter's B is zero, and dropout would not show.
            for name, parameter in loop.objective.named_parameters():
                if "lora_B" in name:
                    parameter.fill_(0.1)
            logits = loop.root.model(input_ids=torch.arange(20)[None]).logits
        of_ranks.append((weights, logits))
    (one, drawn), (other, drawn_by_other) = of_ranks
    assert all(torch.equal(weight, same) for weight, same in zip(one, other, strict=True))
    assert not torch.allclose(drawn, drawn_by_other, rtol=1e-3)


def test_only_the_main_rank_has_callbacks_and_writes_run_json(start: MakeLoop, tmp_path: Path) -> None:
    start(rank=1)
    assert RunDir(tmp_path / "run").read()["resolved"] == {}
    start(rank=0)
    resolved = RunDir(tmp_path / "run").read()["resolved"]
    assert resolved["total_steps"] == resolved["steps_per_epoch"] == 5 and resolved["global_batch"] == 2


def test_a_start_continues_from_the_newest_checkpoint_with_its_counters(start: MakeLoop) -> None:
    first = start(optim={"learning_rate": 0.01, "max_steps": 3})
    first.run()
    first.checkpointer.wait()
    weights = {step: first.run_directory.checkpoint(step) for step in first.run_directory.checkpoint_steps()}
    assert list(weights) == [1, 2, 3]
    first.run_directory.remove_checkpoint(3)
    again = start(optim={"learning_rate": 0.01, "max_steps": 3})
    assert (again.counters.step, again.counters.tokens_seen) == (2, first.counters.tokens_seen * 2 // 3)
    again.run()
    for one, other in zip(first.objective.parameters(), again.objective.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("packing", "raises"), [("auto", True), (False, False)])
def test_a_device_that_packs_otherwise_than_the_run_began_is_refused(
    start: MakeLoop, tmp_path: Path, packing: str | bool, raises: bool
) -> None:
    data = {"train": str(tmp_path / "rows.jsonl"), "packing": packing, "max_length": 64}
    first = start(optim={"max_steps": 3}, data=data)
    first.run()
    first.checkpointer.wait()
    record = first.run_directory.read()
    start(record=record, optim={"max_steps": 3}, data=data)
    changed = {**record, "resolved": {**record["resolved"], "packing": not record["resolved"]["packing"]}}
    if not raises:
        start(record=changed, optim={"max_steps": 3}, data=data)
        return
    with pytest.raises(RecipeError) as refused:
        start(record=changed, optim={"max_steps": 3}, data=data)
    assert refused.value.code == "packing-changed" and "data.packing=false" in refused.value.remedy


def test_a_start_from_an_older_checkpoint_removes_the_later_ones(start: MakeLoop) -> None:
    first = start(optim={"max_steps": 3})
    first.run()
    first.checkpointer.wait()
    again = start(optim={"max_steps": 3}, resume_from=first.run_directory.checkpoint(1))
    assert again.counters.step == 1 and again.run_directory.checkpoint_steps() == [1]


def test_a_checkpoint_of_another_run_without_a_step_left_is_refused(start: MakeLoop, tmp_path: Path) -> None:
    first = start(optim={"max_steps": 3})
    first.run()
    first.checkpointer.wait()
    other = {"resume_from": first.run_directory.checkpoint(2), "run_dir": str(tmp_path / "other")}
    assert start(optim={"max_steps": 3}, **other).counters.step == 2
    with pytest.raises(RecipeError) as caught:
        start(optim={"max_steps": 2}, **other)
    assert caught.value.code == "nothing-to-train" and "ends after step 2" in caught.value.what


@pytest.mark.parametrize("is_of_another_run", [False, True])
def test_losses_on_other_evaluation_rows_are_not_compared(
    start: MakeLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    is_of_another_run: bool,
) -> None:  # fmt: skip
    """Rows that are harder than those before: no step would be the best any more, and the run would stop."""
    losses = iter([1.0, 2.0, 9.0, 8.0, 8.5])
    monkeypatch.setattr("ascendtune.train.loop.evaluate", lambda *_: Evaluation(next(losses), {}, 1))
    rows, held_out = tmp_path / "rows.jsonl", tmp_path / "held_out.jsonl"
    held_out.write_text(rows.read_text().splitlines()[0])
    changes: dict[str, Any] = {
        "data": {"train": str(rows), "eval": str(held_out), "packing": False, "max_length": 64},
        "eval": {"every_steps": 1, "early_stop": {"patience": 2}},
        "optim": {"max_steps": 5},
        "checkpoint": {"every_steps": 1, "keep": 9, "best": True},
    }
    first = start(**changes, align={"stop_after": 2})
    first.run()
    first.checkpointer.wait()
    again = start(**changes)
    assert (again.counters.step, again.counters.best_loss, again.counters.worse_evaluations) == (2, 1.0, 1)
    assert "evaluation data" not in caplog.text

    held_out.write_text(rows.read_text().splitlines()[0].replace("Paris", "Rome"))
    where: dict[str, Any] = {"allow_change": ["data"]}
    if is_of_another_run:
        where = {"run_dir": str(tmp_path / "other"), "resume_from": first.run_directory.checkpoint(2)}
    again = start(**changes, **where)
    assert "the evaluation data has changed" in caplog.text
    assert again.run() == "all steps done"
    assert (again.counters.best_step, again.counters.best_loss) == (4, 8.0)


def test_a_restart_before_the_first_checkpoint_begins_at_that_of_the_other_run_again(
    start: MakeLoop, tmp_path: Path
) -> None:
    first = start(optim={"max_steps": 3})
    first.run()
    first.checkpointer.wait()
    changes: dict[str, Any] = {"optim": {"max_steps": 3}, "run_dir": str(tmp_path / "other")}
    begun = start(resume_from=first.run_directory.checkpoint(1), **changes)
    # What a launcher does: the worker again, on the same record.
    again = start(record=begun.run_directory.read(), **changes)
    assert again.counters.step == 1
    again.run()
    again.checkpointer.wait()
    assert again.run_directory.checkpoint_steps() == [2, 3]
    assert start(record=again.run_directory.read(), **changes).counters.step == 3


@pytest.mark.parametrize(
    ("method", "is_refused"),
    [
        ({"tuner": "lora"}, True),
        ({"tuner": "freeze", "freeze": {"extra": ["embed_tokens"]}}, True),
        ({"sft": {"loss": "asft"}}, True),
        # All of its weights are in the checkpoint.
        ({"tuner": "full"}, False),
    ],
)
def test_a_model_that_has_changed_since_the_checkpoint_is_refused(
    method: dict[str, Any], is_refused: bool, start: MakeLoop, tiny_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    changes = {"optim": {"max_steps": 3}, "model": {"path": str(model)}, "method": method}
    first = start(**changes)
    first.run()
    first.checkpointer.wait()
    assert start(**changes).counters.step == 3
    file = model / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] += 1
    save_file(tensors, file, metadata={"format": "pt"})
    if not is_refused:
        assert start(**changes).counters.step == 3
        return
    with pytest.raises(RecipeError) as caught:
        start(**changes)
    assert caught.value.code == "base-model-changed"
    assert "1 weight has changed, the first is model.layers.0.mlp.up_proj.weight" in caught.value.what


def test_the_global_batch_of_a_run_stays_when_the_recipe_makes_it_larger(start: MakeLoop) -> None:
    first = start(optim={"max_steps": 3})
    first.run()
    first.checkpointer.wait()
    record = first.run_directory.read()
    assert record["global_batch"] == 2 and record["resume_from"] is None
    assert start(optim={"max_steps": 3}).batches.plan.steps_per_epoch == first.batches.plan.steps_per_epoch


def test_a_model_whose_flops_cannot_be_counted_trains(
    start: MakeLoop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counted = start().recorder.flops

    def fail(*args: Any, **options: Any) -> Any:
        raise AttributeError("moon")

    monkeypatch.setattr(model_flops, "_counted", fail)
    loop = start()
    assert "the FLOPs of this model cannot be counted (AttributeError('moon'))" in caplog.text
    # Heads and attention are not told apart: the same within a factor.
    assert 0.5 < loop.recorder.flops.useful_flops(100, 100) / counted.useful_flops(100, 100) < 2
    loop.run()


@pytest.mark.parametrize(("steps", "is_said"), [(3, False), (6, True)])
def test_learning_rate_that_jumps_in_a_prolonged_run_is_told(
    start: MakeLoop, caplog: pytest.LogCaptureFixture, steps: int, is_said: bool
) -> None:
    optim = {"learning_rate": 0.01, "scheduler": "linear"}
    first = start(optim={**optim, "max_steps": 3})
    first.recorder.callbacks.append(MetricsWriter(first.run_directory))
    first.run()
    caplog.set_level(logging.INFO, "ascendtune")
    again = start(
        optim={**optim, "max_steps": steps}, resume_from=first.run_directory.checkpoint(2 if steps == 3 else 3),
        allow_change=["optim.max_steps"],
    )  # fmt: skip
    said = [each for each in caplog.messages if "schedule of the learning rate" in each]
    expected = ["the schedule of the learning rate has changed: 0.00333 in step 3, 0.005 in step 4"]
    assert said == (expected if is_said else [])
    assert again.schedule.learning_rate(again.counters.step) == pytest.approx(0.005 if is_said else 0.01 / 3)


def test_a_run_that_stopped_early_goes_on_only_with_more_patience_and_in_another_run(
    start: MakeLoop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = str(tmp_path / "rows.jsonl")
    changes: dict[str, Any] = {
        "data": {"train": rows, "eval": rows, "packing": False, "max_length": 64},
        "optim": {"max_steps": 6},
    }

    def evaluated(patience: int) -> dict[str, Any]:
        return {"eval": {"every_steps": 1, "early_stop": {"patience": patience, "min_improvement": 100}}}

    first = start(**changes, **evaluated(2))
    assert first.run().startswith("no improvement") and first.counters.step == 3
    assert "no step is trained" not in caplog.text
    assert start(**changes, **evaluated(2)).run().startswith("no improvement")
    assert "no step is trained: no improvement of 100 in 2 evaluations" in caplog.text
    caplog.clear()
    checkpoint = first.run_directory.checkpoint(3)
    other = start(**changes, **evaluated(2), resume_from=checkpoint, run_dir=str(tmp_path / "other"))
    assert other.run().startswith("no improvement") and other.counters.step == 6
    again = start(**changes, **evaluated(4), allow_change=["eval.early_stop.patience"])
    assert again.run().startswith("no improvement") and again.counters.step == 5
    assert "no step is trained" not in caplog.text


def test_resume_behind_the_end_is_told(start: MakeLoop, caplog: pytest.LogCaptureFixture) -> None:
    first = start(optim={"max_steps": 3})
    first.run()
    start(optim={"max_steps": 3})
    assert "the run ends after" not in caplog.text
    again = start(optim={"max_steps": 2}, allow_change=["optim.max_steps"])
    assert "the checkpoint is of step 3, and the run ends after step 2" in caplog.text
    assert again.run() == "all steps done" and again.counters.step == 3
