"""The loss on data that is not trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from ascendtune.train.batch import Batches, DeviceBatch
from ascendtune.train.objective.base import Objective
from ascendtune.train.objective.double_float import DoubleFloat, to_double_float
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import RootModule

_LARGEST_EXPONENT = 709.0
"""math.exp of larger numbers fails."""


def evaluate(
    batches: Batches, objective: Objective, root: RootModule, precision: Precision, progress: Callable[[int, int], None]
) -> tuple[float, dict[str, float]]:
    """Means over a whole data set, computed by all ranks together: the loss, and the objective's other values.

    Where the loss is a mean over tokens, exp(loss), the perplexity, is one of these.

    Args:
        root: the module that gathers the weights of the model in `objective`.
        progress: called before each global batch with the number of batches done, and of all; may raise.
    """
    strategy, plan, sums = batches.strategy, batches.plan, dict[str, DoubleFloat]()

    def micro_batches(*, mismatched: bool = False) -> Iterator[DeviceBatch]:
        for step in range(plan.steps_per_epoch):
            progress(step, plan.steps_per_epoch)
            yield from batches.micro_batches(plan.batch(step), mismatched=mismatched)

    was_training = objective.training
    objective.eval()
    with torch.no_grad(), precision.autocast():
        objective.begin(micro_batches(mismatched=True), root)
        for batch in micro_batches():
            loss, extras = root(objective, batch)
            for name, value in (("loss", loss), *extras.items()):
                # In fp32, the sum of a hundred thousand batches would lose the digits of the last ones.
                sums[name] = sums[name].plus(to_double_float(value)) if name in sums else to_double_float(value)
    objective.train(was_training)
    dataset = batches.dataset
    units = len(dataset) // dataset.group_size if objective.unit == "group" else int(dataset.label_counts.sum())
    parts = strategy.sum([part for total in sums.values() for part in total])
    means = {name: (parts[2 * at] + parts[2 * at + 1]) / units for at, name in enumerate(sums)}
    loss = means.pop("loss")
    extras = objective.to_metrics(means)
    if objective.unit == "token":
        # Of the plain cross-entropy, which is the loss of an evaluation whatever that of training is.
        extras["perplexity"] = math.inf if loss > _LARGEST_EXPONENT else math.exp(loss)
    return loss, extras
