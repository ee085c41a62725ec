"""The loss on data that is not trained on."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ascendtune.data.plan import BatchPlan, share_of_rank
from ascendtune.data.store import TokenDataset
from ascendtune.train.batch import BatchMaker, idle
from ascendtune.train.precision import Precision
from ascendtune.train.stage.base import Objective
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
        strategy, sums = self._strategy, dict[str, torch.Tensor]()
        was_training = objective.training
        objective.eval()
        with torch.no_grad(), self._precision.autocast():
            for step in range(self.plan.steps_per_epoch):
                pulse()
                sequences = self.plan.batch(step)
                shares = share_of_rank(
                    sequences, rank=strategy.rank, world_size=strategy.world_size, per_device=self._per_device
                )
                for share in shares:
                    # A rank without work must still take part in the collectives.
                    batch = self.batches.make(share) if share else idle(self.batches.make(sequences[:1]))
                    loss, extras = objective(batch)
                    for name, value in (("loss", loss), *extras.items()):
                        sums[name] = sums[name] + value if name in sums else value
        objective.train(was_training)
        units = self._groups if objective.unit == "group" else self.labelled
        means = {name: total / units for name, total in zip(sums, strategy.sum(list(sums.values())), strict=True)}
        return means.pop("loss"), objective.recorded(means)
