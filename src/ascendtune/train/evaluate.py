"""The loss on data that is not trained on."""

from __future__ import annotations

import torch
from torch import nn

from ascendtune.data.collate import collate
from ascendtune.data.plan import BatchPlan, share_of_rank
from ascendtune.data.store import TokenDataset
from ascendtune.train.batch import to_device
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import Strategy


class Evaluation:
    """Evaluates an objective over a whole data set, shared by the ranks.

    Args:
        capacity: tokens of a packed sequence; None pads.
    """

    def __init__(
        self,
        dataset: TokenDataset,
        strategy: Strategy,
        precision: Precision,
        *,
        capacity: int | None,
        per_device: int,
        pad_id: int,
    ) -> None:
        self._dataset = dataset
        self._strategy = strategy
        self._precision = precision
        self._per_device = per_device
        self._pad_id = pad_id
        self._packed = capacity is not None
        self._plan = BatchPlan(
            dataset.lengths,
            dataset.label_counts,
            capacity=capacity,
            global_batch=per_device * strategy.world_size,
            seed=None,
        )

    def loss(self, objective: nn.Module) -> tuple[float, int]:
        """Mean loss per labelled token, and how many of these there are."""
        strategy = self._strategy
        total = torch.zeros((), device=strategy.device.torch_device)
        was_training = objective.training
        objective.eval()
        with torch.no_grad(), self._precision.autocast():
            for step in range(self._plan.steps_per_epoch):
                shares = share_of_rank(
                    self._plan.batch(step),
                    rank=strategy.rank,
                    world_size=strategy.world_size,
                    per_device=self._per_device,
                )
                for sequences in shares:
                    # A rank without work still takes part: where weights are divided, all gather them together.
                    shown = sequences or self._plan.batch(step)[:1]
                    batch = collate(self._dataset, shown, packed=self._packed, pad_id=self._pad_id)
                    loss = objective(to_device(batch, strategy.device))
                    total += loss if sequences else 0
        objective.train(was_training)
        labelled = int(self._dataset.label_counts.sum())
        return strategy.sum([total])[0] / labelled, labelled
