"""The loss on data that is not trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

import torch

from ascendtune.train.batch import Batches, DeviceBatch
from ascendtune.train.objective.base import Objective
from ascendtune.train.objective.double_float import DoubleFloat, to_double_float
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import RootModule

_LARGEST_EXPONENT = 709.0
"""math.exp of larger numbers fails."""


@dataclass(frozen=True)
class Evaluation:
    """Means over evaluation data."""

    loss: float
    extras: dict[str, float]
    """The objective's other values and, where the loss is a mean over tokens, exp(loss), the perplexity."""
    labelled_tokens: int
    """Number of tokens that count in the loss."""
    of_datasets: dict[str, Evaluation] = field(default_factory=dict)
    """The same of each data set of a mixture, by name."""


def evaluate(
    batches: Batches, objective: Objective, root: RootModule, precision: Precision, progress: Callable[[int, int], None]
) -> Evaluation:
    """Means over a whole data set, computed by all ranks together.

    Args:
        batches: of a plan in which no step has rows of two data sets.
        root: the module that gathers the weights of the model in `objective`.
        progress: called before each global batch with the number of batches done, and of all; may raise.
    """
    strategy, plan, sums = batches.strategy, batches.plan, dict[tuple[int, str], DoubleFloat]()

    def micro_batches(*, mismatched: bool = False) -> Iterator[tuple[int, DeviceBatch]]:
        for step in range(plan.steps_per_epoch):
            progress(step, plan.steps_per_epoch)
            sequences = plan.batch(step)
            for batch in batches.micro_batches(sequences, mismatched=mismatched):
                yield plan.dataset_of(sequences[0]), batch

    was_training = objective.training
    objective.eval()
    with torch.no_grad(), precision.autocast():
        objective.begin((batch for _, batch in micro_batches(mismatched=True)), root)
        for dataset, batch in micro_batches():
            loss, extras = root(objective, batch)
            for name, value in (("loss", loss), *extras.items()):
                key, more = (dataset, name), to_double_float(value)
                # In fp32, the sum of a hundred thousand batches would lose the digits of the last ones.
                sums[key] = sums[key].plus(more) if key in sums else more
    objective.train(was_training)
    parts = strategy.sum([part for total in sums.values() for part in total])
    totals = {key: parts[2 * at] + parts[2 * at + 1] for at, key in enumerate(sums)}
    labelled = [_labelled_tokens(batches, groups) for groups in plan.groups_of_datasets()]
    sizes = [groups.stop - groups.start for groups in plan.groups_of_datasets()]
    units = sizes if objective.unit == "group" else labelled

    def means(datasets: Collection[int]) -> Evaluation:
        of_these = {name: 0.0 for _, name in totals}
        for (dataset, name), total in totals.items():
            of_these[name] += total if dataset in datasets else 0.0
        divisor = sum(units[dataset] for dataset in datasets)
        losses = {name: total / divisor for name, total in of_these.items()}
        loss = losses.pop("loss")
        extras = objective.to_metrics(losses)
        if objective.unit == "token":
            # Of the plain cross-entropy, which is the loss of an evaluation whatever that of training is.
            extras["perplexity"] = math.inf if loss > _LARGEST_EXPONENT else math.exp(loss)
        return Evaluation(loss, extras, sum(labelled[dataset] for dataset in datasets))

    of_datasets = {name: means([at]) for at, name in enumerate(plan.datasets) if units[at]}
    return replace(means(range(len(units))), of_datasets=of_datasets)


def _labelled_tokens(batches: Batches, groups: slice) -> int:
    size = batches.dataset.group_size
    return int(batches.dataset.label_counts[groups.start * size : groups.stop * size].sum())
