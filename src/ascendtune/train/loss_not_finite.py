"""The error of a training whose loss or gradient is not a number, and its remedies."""

from __future__ import annotations

import shlex

from ascendtune.core.errors import CheckFailed
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.precision import Precision
from ascendtune.train.step_metrics import StepMetrics


def loss_not_finite(step: int, metrics: StepMetrics, recipe: Recipe, precision: Precision, run: RunDir) -> CheckFailed:
    """The error of a step whose loss or gradient norm is not finite."""
    changes = ["lower optim.learning_rate"]
    if not (recipe.optim.warmup_ratio or recipe.optim.warmup_steps):
        changes.append("add optim.warmup_ratio")
    if precision.compute != "fp32":
        changes.append("try precision: fp32")
    return CheckFailed(
        f"step {step}: loss {metrics.loss}, gradient norm {metrics.norm}: not a number",
        code="loss-not-finite",
        remedy=f"{', or '.join(changes)}; no checkpoint contains weights of this step. "
        f"`ascendtune align nan {shlex.quote(str(run))}` names the module that produced it. "
        "on_nan: skip skips such steps",
        where=run.metrics,
    )
