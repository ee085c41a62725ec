"""The numbers of a run that a checkpoint stores beside tensors. Free of torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from ascendtune.core.units import count_of
from ascendtune.recipe.sections import EarlyStopSection


@dataclass
class Counters:
    """The state of a run that a checkpoint stores beside tensors."""

    step: int = 0
    """Optimizer steps made so far."""
    tokens_seen: int = 0
    tokens_of_datasets: list[int] = field(default_factory=list)
    """The same of each data set of a mixture, in order; empty if there is only one."""
    skipped_steps: int = 0
    """Steps skipped because the loss or the gradient was not finite."""
    best_step: int | None = None
    best_loss: float | None = None
    """The lowest evaluation loss."""
    improved_loss: float | None = None
    """The loss of the last evaluation that was an improvement; early stopping compares with it."""
    worse_evaluations: int = 0
    """Evaluations since the last improvement."""
    evaluated_step: int = 0
    """The step of the last evaluation."""
    evaluated_on: str = ""
    """Hash of the evaluation rows; losses on other rows are not comparable."""
    scaler: dict[str, Any] = field(default_factory=dict)
    """State of the fp16 gradient scaler."""

    def note_evaluation(self, loss: float, early: EarlyStopSection | None) -> bool:
        """Record the evaluation loss after `step`, and return whether it is the lowest. NaN never is."""
        min_improvement = early.min_improvement if early else 0.0
        is_best = loss < (math.inf if self.best_loss is None else self.best_loss)
        if is_best:
            self.best_loss, self.best_step = loss, self.step
        if loss < (math.inf if self.improved_loss is None else self.improved_loss - min_improvement):
            self.improved_loss, self.worse_evaluations = loss, 0
        else:
            self.worse_evaluations += 1
        self.evaluated_step = self.step
        return is_best

    def early_stop(self, early: EarlyStopSection | None) -> str | None:
        """The reason to stop early; None if there is none."""
        if early is None or self.worse_evaluations < early.patience:
            return None
        enough = f" of {early.min_improvement:g}" if early.min_improvement else ""
        tried = count_of(early.patience, "evaluation")
        return f"no improvement{enough} in {tried}; the best was step {self.best_step}"

    def forget_evaluations(self) -> None:
        """Restart the search for the best evaluation and for improvements."""
        self.best_step = self.best_loss = self.improved_loss = None
        self.worse_evaluations = 0

    @classmethod
    def of(cls, state: dict[str, Any]) -> Counters:
        """Counters from the state in a checkpoint; unknown keys are ignored."""
        return cls(**{each.name: state[each.name] for each in fields(cls) if each.name in state})
