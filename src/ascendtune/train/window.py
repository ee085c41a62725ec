"""The numbers between two records: kept on the device until a record reads them, once."""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass, field

import torch

from ascendtune.data.plan import Sequence_
from ascendtune.train.strategy.base import Strategy


@dataclass
class Window:
    """What has happened since the last record: one step, or `track.every_steps` of them."""

    begun: float
    losses: list[torch.Tensor] = field(default_factory=list)
    """Summed loss of each step, this rank's part."""
    counts: list[int] = field(default_factory=list)
    """Labelled tokens of each step, all ranks."""
    tokens: int = 0
    last_batch: list[Sequence_] = field(default_factory=list)
    grad_norm: torch.Tensor | None = None
    learning_rate: float = 0.0
    is_read: bool = False
    loss: float = math.nan
    """Mean over the labelled tokens of the window, all ranks; known once read."""
    norm: float = math.nan
    asked_to_stop: int = 0
    """A signal that reached any rank, agreed by all of them."""

    @property
    def labelled(self) -> int:
        return sum(self.counts)

    def add(self, loss: torch.Tensor, labelled: int, tokens: int, batch: list[Sequence_]) -> None:
        self.losses.append(loss)
        self.counts.append(labelled)
        self.tokens += tokens
        self.last_batch = batch
        self.is_read = False

    def read(self, strategy: Strategy, signal_number: int) -> None:
        """Bring the numbers to the host: the one synchronisation of a recorded step."""
        norm = self.grad_norm if self.grad_norm is not None else torch.tensor(math.nan)
        by_interrupt, by_term = float(signal_number == signal.SIGINT), float(signal_number == signal.SIGTERM)
        # Gradients are equal on all ranks after their collective, so every rank sends its share of one norm.
        total = torch.stack(self.losses).sum() if self.losses else 0.0
        loss, norm_sum, interrupts, terms = strategy.sum([total, norm / strategy.world_size, by_interrupt, by_term])
        self.loss, self.norm = (loss / self.labelled if self.losses else math.nan), norm_sum
        self.asked_to_stop = signal.SIGTERM if terms else signal.SIGINT if interrupts else 0
        self.is_read = True

    def leave_out_last(self) -> None:
        """Forget the loss of a skipped step, so that it does not spoil the mean of the others."""
        self.losses.pop()
        self.counts.pop()
        self.is_read = False
