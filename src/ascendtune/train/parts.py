"""What a training loop works with, and what a checkpoint remembers beside tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import nn

from ascendtune.core.rundir import RunDir
from ascendtune.data.plan import BatchPlan, PackedSequence
from ascendtune.data.store import TokenDataset
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.batch import BatchMaker
from ascendtune.train.checkpoint.checkpointer import Checkpointer
from ascendtune.train.evaluate import Evaluation
from ascendtune.train.objective.base import Objective
from ascendtune.train.phases import Phases
from ascendtune.train.precision import Precision
from ascendtune.train.report.callback import Callback
from ascendtune.train.schedule import Schedule
from ascendtune.train.stop_request import StopRequest
from ascendtune.train.strategy.base import Strategy


@dataclass
class Counters:
    """What a checkpoint remembers beside tensors."""

    step: int = 0
    """Optimiser steps that are behind."""
    tokens_seen: int = 0
    skipped_steps: int = 0
    """Steps left out because their gradient was not a number."""
    best_step: int | None = None
    best_loss: float | None = None
    """The lowest evaluation loss."""
    improved_loss: float | None = None
    """The loss of the last evaluation that was an improvement; early stopping counts from there."""
    worse_evaluations: int = 0
    """Evaluations since the last improvement."""
    evaluated_step: int = 0
    """The step of the last evaluation."""
    scaler: dict[str, Any] = field(default_factory=dict)
    """State of the fp16 gradient scaler."""

    def note_evaluation(self, loss: float, *, min_improvement: float) -> bool:
        """Note the evaluation loss after `step`; returns whether it is the lowest. NaN never is.

        Args:
            min_improvement: how much lower than at the last improvement the loss must be to count as one.
        """
        is_best = loss < (math.inf if self.best_loss is None else self.best_loss)
        if is_best:
            self.best_loss, self.best_step = loss, self.step
        if loss < (math.inf if self.improved_loss is None else self.improved_loss - min_improvement):
            self.improved_loss, self.worse_evaluations = loss, 0
        else:
            self.worse_evaluations += 1
        self.evaluated_step = self.step
        return is_best

    @classmethod
    def of(cls, state: dict[str, Any]) -> Counters:
        """From what a checkpoint says; what this version does not know is left out."""
        return cls(**{each.name: state[each.name] for each in fields(cls) if each.name in state})


@dataclass
class Parts:
    """Everything a loop works with; the worker puts it together."""

    recipe: Recipe
    run: RunDir
    attempt: int
    strategy: Strategy
    precision: Precision
    objective: Objective
    module: nn.Module
    """`objective` as the strategy wrapped it: what is called in training."""
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    dataset: TokenDataset
    plan: BatchPlan
    batches: BatchMaker
    per_device: int
    total_steps: int
    flops_per_token: float
    evaluation: Evaluation | None
    checkpointer: Checkpointer
    checkpoint_every: int
    callbacks: list[Callback]
    activations: Callable[[], AbstractContextManager[Any]]
    """Context of a forward pass, for where its activations are kept."""
    phases: Phases
    stop: StopRequest

    @property
    def counts_groups(self) -> bool:
        return self.objective.unit == "group"

    def units(self, sequences: list[PackedSequence]) -> int:
        """What the summed loss of a global batch is divided by."""
        return self.plan.groups(sequences) if self.counts_groups else self.plan.labelled_tokens(sequences)
