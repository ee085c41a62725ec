"""A model of one table, and a loop around it: no model from a file, no processes, a few milliseconds a step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ascendtune.core.rundir import RunDir
from ascendtune.data.plan import BatchPlan
from ascendtune.data.store import ShardWriter, TokenDataset
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.batch import Batches, DeviceBatch
from ascendtune.train.checkpoint.checkpointer import Checkpointer
from ascendtune.train.checkpoint.content import CheckpointContent, NamedTensors
from ascendtune.train.counters import Counters
from ascendtune.train.dump.step_dumps import StepDumps
from ascendtune.train.flops import TokenFlops
from ascendtune.train.loop import Loop
from ascendtune.train.objective.base import LossOutput, Objective
from ascendtune.train.optimizer import Schedule, make_optimizer
from ascendtune.train.phases import Phases
from ascendtune.train.precision import Precision
from ascendtune.train.profile.step_profile import StepProfile
from ascendtune.train.recorder import Recorder
from ascendtune.train.report.callback import Callback
from ascendtune.train.stop_request import StopRequest
from ascendtune.train.strategy.base import RootModule, Strategy

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

    def forward(self, batch: DeviceBatch) -> LossOutput:
        logits = self.model(batch.input_ids).flatten(0, 1).index_select(0, batch.target_index)
        return LossOutput(cross_entropy(logits, batch.targets, reduction="sum"), {})


class FirstOfTwo(Strategy):
    """Rank 0 of two, whose other rank adds nothing."""

    def __init__(self) -> None:
        super().__init__(find_device())
        self.world_size = 2

    def checkpoint_content(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> CheckpointContent:
        return NamedTensors(model, optimizer, self.device)


def write_dataset(directory: Path) -> TokenDataset:
    directory.mkdir(parents=True)
    random = np.random.default_rng(0)
    tokens = random.integers(0, VOCABULARY, sum(LENGTHS)).astype(np.int32)
    with ShardWriter(directory / "00000.arrow") as writer:
        writer.write(tokens, tokens, np.cumsum([0, *LENGTHS], dtype=np.int32))
    return TokenDataset.open(directory)


def plan_of(dataset: TokenDataset, global_batch: int, seed: int | None = None) -> BatchPlan:
    return BatchPlan(dataset.lengths, dataset.label_counts, capacity=None, global_batch=global_batch, seed=seed)


def make_table_loop(
    directory: Path, strategy: Strategy | None = None, steps: int = 6, **changes: Any
) -> tuple[Loop, Told]:
    """Of `steps` steps of three rows; `directory` is empty."""
    strategy = strategy or Strategy(find_device())
    sections = {"model": {"path": "none"}, "data": {"train": "none", "eval": "none"}, "precision": "fp32"}
    recipe = Recipe.check({"batch": {"per_device": 1}, **sections, **changes})
    run = RunDir(directory / "run")
    run.create("", {}, {})
    dataset = write_dataset(directory / "tokens")
    torch.manual_seed(0)
    root = RootModule(nn.Embedding(VOCABULARY, VOCABULARY))
    optimizer = make_optimizer(recipe.optim, root.named_parameters(), 0.1, fused=False)

    batches = Batches(
        dataset, plan_of(dataset, 3, seed=1), strategy, recipe.batch.per_device, padding_free=False, pad_id=0
    )
    told, objective = Told(), NextToken(root.model)
    counters, phases, stop = Counters(), Phases(None), StopRequest()
    recorder = Recorder(
        strategy, objective, batches, TokenFlops(1.0, 1.0, 0.0, 0.0), counters, phases, stop,
        hashes_batches=recipe.align.batch_hash, callbacks=[told],
    )  # fmt: skip
    return Loop(
        run_directory=run, recipe=recipe, strategy=strategy,
        precision=Precision("fp32", "fp32", "asked for", "cpu"),
        root=root, module=root, objective=objective,
        optimizer=optimizer, scaler=None, schedule=Schedule(recipe.optim, 0.1, steps),
        batches=batches, held_out=replace(batches, plan=plan_of(dataset, strategy.world_size)),
        activations=nullcontext,
        checkpointer=Checkpointer(
            run, strategy, strategy.checkpoint_content(root, optimizer), keep=recipe.checkpoint.keep
        ),
        checkpoint_every=recipe.checkpoint.every_steps or 1000, counters=counters, phases=phases,
        dumps=StepDumps(run.dumps, recipe.align, strategy, root.model),
        profile=StepProfile(run.profile, recipe.profile, strategy, root.model, optimizer, Phases(None), {}),
        stop=stop, recorder=recorder, model=root.model, tokenizer=None, export_dtype=torch.float32,
    ), told  # fmt: skip
