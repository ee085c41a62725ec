"""The loss on data that is not trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from ascendtune.data.plan import BatchPlan, PackedSequence
from ascendtune.data.store import TokenDataset
from ascendtune.train.batch import BatchMaker, DeviceBatch, batches_of_rank
from ascendtune.train.objective.base import Objective
from ascendtune.train.objective.double_float import DoubleFloat, widened
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import Strategy


class Evaluation:
    """Evaluates an objective over a whole data set, shared by the ranks.

    Args:
        capacity: tokens of a packed sequence; None makes every row a sequence.
    """

    def __init__(
        self,
        dataset: TokenDataset,
        strategy: Strategy,
        precision: Precision,
        *,
        batches: BatchMaker,
        capacity: int | None,
        per_device: int,
    ) -> None:
        self.dataset = dataset
        self.batches = batches
        self._strategy = strategy
        self._precision = precision
        self._per_device = per_device
        self.plan = BatchPlan(
            dataset.lengths,
            dataset.label_counts,
            capacity=capacity,
            global_batch=per_device * strategy.world_size,
            seed=None,
            group_size=dataset.group_size,
        )
        self._groups = len(dataset.lengths) // dataset.group_size
        self.labelled = int(dataset.label_counts.sum())
        """Labelled tokens of the data set."""

    def run(self, objective: Objective, pulse: Callable[[], None]) -> tuple[float, dict[str, float]]:
        """Means over the data set: the loss, and what else the objective tells.

        Args:
            pulse: called before every batch, as a sign of life.
        """
        strategy, sums = self._strategy, dict[str, DoubleFloat]()
        was_training = objective.training
        objective.eval()
        with torch.no_grad(), self._precision.autocast():
            objective.begin(self._share(self.batches.make_mismatched, pulse))
            for batch in self._share(self.batches.make, pulse):
                loss, extras = objective(batch)
                for name, value in (("loss", loss), *extras.items()):
                    # Of a hundred thousand batches, fp32 would lose the last ones' digits.
                    sums[name] = sums[name].plus(widened(value)) if name in sums else widened(value)
        objective.train(was_training)
        units = self._groups if objective.unit == "group" else self.labelled
        parts = strategy.sum([part for total in sums.values() for part in total])
        means = {name: (parts[2 * at] + parts[2 * at + 1]) / units for at, name in enumerate(sums)}
        return means.pop("loss"), objective.recorded(means)

    def _share(
        self, make: Callable[[list[PackedSequence]], DeviceBatch], pulse: Callable[[], None]
    ) -> Iterator[DeviceBatch]:
        """This rank's batches of the whole data set."""
        for step in range(self.plan.steps_per_epoch):
            pulse()
            yield from batches_of_rank(make, self.plan.batch(step), self._strategy, self._per_device)
