"""Batch sizes in DeepSpeed's message that do not fit together, and the nearest ones that do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ascendtune.check.explain.language import say

_EQUATION = re.compile(
    r"world_size (?P<total>\d{1,9}) != (?P<micro>\d{1,9}) \* (?P<steps>\d{1,9}) \* (?P<ranks>\d{1,6})\b"
)
_MOST_RANKS = 2
"""Most numbers of ranks in a remedy."""


@dataclass(frozen=True)
class BatchSizes:
    """Sizes in rows: of one optimizer step on all ranks, and of one micro-batch on one rank."""

    total: int
    micro: int
    steps: int
    ranks: int

    @property
    def divides(self) -> bool:
        """Whether the total is a multiple of one micro-batch on every rank."""
        return self.total % (self.micro * self.ranks) == 0

    def remedy(self) -> str:
        unit = self.micro * self.ranks
        if self.divides:
            template = (
                "set gradient_accumulation_steps: {steps} ({total} = {micro} × {steps} × {ranks} ranks), or "
                "train_batch_size: {product}"
            )
            return say(
                template,
                total=self.total,
                micro=self.micro,
                steps=self.total // unit,
                ranks=self.ranks,
                product=unit * self.steps,
            )
        below = self.total // unit * unit
        sizes = " / ".join(str(size) for size in (below, below + unit) if size)
        template = (
            "{total} is not a multiple of {micro} (micro-batch) × {ranks} (ranks): a train batch size of {sizes} fits"
        )
        fits = say(template, total=self.total, micro=self.micro, ranks=self.ranks, sizes=sizes)
        others = self._fitting_ranks()
        return fits + say("; or start {ranks} ranks", ranks=" / ".join(map(str, others))) if others else fits

    def _fitting_ranks(self) -> list[int]:
        """Nearest numbers of ranks for which the total is a multiple."""
        near = sorted(range(2, 2 * self.ranks), key=lambda ranks: abs(ranks - self.ranks))
        return sorted([ranks for ranks in near if self.total % (self.micro * ranks) == 0][:_MOST_RANKS])


def batch_sizes_in(text: str) -> BatchSizes | None:
    """Batch sizes in a message of DeepSpeed; None if it has none, or for one rank."""
    match = _EQUATION.search(text)
    if match is None:
        return None
    sizes = BatchSizes(int(match["total"]), int(match["micro"]), int(match["steps"]), int(match["ranks"]))
    return sizes if sizes.micro and sizes.ranks > 1 else None
