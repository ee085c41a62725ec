"""Sums over the steps since the last record, kept on the device until they are read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ascendtune.data.plan import BatchPlan, PackedSequence
from ascendtune.train.stop_request import agreed_signal, stop_flags
from ascendtune.train.strategy.base import Strategy


@dataclass
class StepMetrics:
    """Sums since the last record: of one step, or of `track.every_steps` steps."""

    sums: list[dict[str, torch.Tensor]] = field(default_factory=list)
    """`loss` and extras of each step, each summed over this rank's rows."""
    counts: list[tuple[int, int]] = field(default_factory=list)
    """(units that the loss is averaged over, labelled tokens) of each step, of all ranks."""
    tokens: int = 0
    tokens_of_datasets: list[int] = field(default_factory=list)
    """The same of each data set of a mixture."""
    last_batch: list[PackedSequence] = field(default_factory=list)
    grad_norm: torch.Tensor | None = None
    in_range: list[torch.Tensor] = field(default_factory=list)
    """() bool of each step with a scaled loss: whether its gradients are finite; if not, the device skips it."""
    learning_rate: float = 0.0
    step: int = 0
    """The step after which the sums are recorded."""
    skipped_steps: int = 0
    """Skipped steps of the run up to that step; includes those that the device skipped once `read` was called."""
    is_read: bool = False
    """Whether the numbers below include all steps that were added."""
    loss: float = math.nan
    """Mean over the units since the last record, of all ranks; set by `read`."""
    extras: dict[str, float] = field(default_factory=dict)
    """Means over the units of the objective's other values; its `to_metrics` selects those that are recorded."""
    norm: float = math.nan
    overflowed: int = 0
    """Number of steps that were not `in_range`."""
    stop_signal: int = 0
    """A stop signal that reached any rank; all ranks agree on it."""
    _sent: Callable[[], torch.Tensor] | None = None
    """Waits until the sums of all ranks are on the host, and returns them."""

    @property
    def is_finite(self) -> bool:
        """Whether loss and norm are finite, once read."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)

    @property
    def units(self) -> int:
        return sum(units for units, _ in self.counts)

    @property
    def labelled(self) -> int:
        return sum(labelled for _, labelled in self.counts)

    def add(
        self, sums: dict[str, torch.Tensor], *, units: int, labelled: int, plan: BatchPlan, batch: list[PackedSequence]
    ) -> None:
        """Add a step: this rank's sums, () fp32 each; the counts are of all ranks."""
        self.sums.append(sums)
        self.counts.append((units, labelled))
        self.tokens += plan.tokens(batch)
        if plan.datasets:
            self.tokens_of_datasets = added(self.tokens_of_datasets, plan.tokens_by_dataset(batch))
        self.last_batch = batch
        self._forget()

    def send(self, strategy: Strategy, signal_number: int) -> None:
        """Queue the all-reduce of the sums and their copy to the host, if not done yet. Every rank must call this."""
        if self._sent is not None:
            return
        norm = self.grad_norm if self.grad_norm is not None else torch.tensor(math.nan)
        totals = [_total([each[name] for each in self.sums]) for name in self._names()]
        overflowed = len(self.in_range) - torch.stack(self.in_range).sum() if self.in_range else 0.0
        # Gradients are equal on all ranks after their all-reduce: every rank contributes its share of their norm.
        sums = strategy.sum_on_device(
            [*totals, norm / strategy.world_size, overflowed / strategy.world_size, *stop_flags(signal_number)]
        )
        self._sent = strategy.device.copy_to_host(sums)

    def read(self) -> None:
        """Wait for the sums that `send` queued, and store their means."""
        assert self._sent is not None
        *totals, norm_sum, overflowed, interrupts, terms = self._sent().tolist()
        means = {name: total / self.units for name, total in zip(self._names(), totals, strict=True)}
        self.loss, self.norm, self.overflowed = means.pop("loss", math.nan), norm_sum, round(overflowed)
        self.extras = means
        self.stop_signal = agreed_signal((interrupts, terms))
        self.is_read = True

    def drop_last(self) -> None:
        """Drop the loss of a skipped step: a single NaN would propagate to the mean of the others."""
        self.sums.pop()
        self.counts.pop()
        self._forget()

    def _names(self) -> list[str]:
        return list(self.sums[0]) if self.sums else []

    def _forget(self) -> None:
        self.is_read, self._sent = False, None


def added(counts: list[int], more: list[int]) -> list[int]:
    """The sums of both; `more` if `counts` are not of as many data sets."""
    return [one + other for one, other in zip(counts, more, strict=True)] if len(counts) == len(more) else more


def _total(sums: list[torch.Tensor]) -> torch.Tensor:
    """Sum of `sums`, () fp32 each; the result, too."""
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum()
