"""The learning rate of every step, as a share of its peak. The formulas of transformers' schedulers."""

from __future__ import annotations

import math

from ascendtune.recipe.sections import OptimSection


class Schedule:
    """Linear warm-up from 0, then constant, linear or cosine down to `min_learning_rate_ratio`.

    Args:
        section: scheduler, warm-up and floor.
        peak: learning rate at the end of the warm-up.
        total_steps: steps of the whole run.
    """

    def __init__(self, section: OptimSection, peak: float, total_steps: int) -> None:
        self._shape = section.scheduler
        self._floor = section.min_learning_rate_ratio
        self._peak = peak
        self._total = total_steps
        steps = section.warmup_steps
        self.warmup_steps = math.ceil(total_steps * section.warmup_ratio) if steps is None else steps

    def learning_rate(self, step: int) -> float:
        """The rate of `step`, counted from 0."""
        if step < self.warmup_steps:
            return self._peak * step / self.warmup_steps
        if self._shape == "constant":
            return self._peak
        progress = (step - self.warmup_steps) / max(1, self._total - self.warmup_steps)
        share = max(0.0, 1 - progress if self._shape == "linear" else 0.5 * (1 + math.cos(math.pi * progress)))
        return self._peak * (self._floor + (1 - self._floor) * share)
