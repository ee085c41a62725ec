"""Reads the measurements of a training from its run directory and from the vendor's tool. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean, median
from typing import Any

from ascendtune.check.bench.cells import Repeat
from ascendtune.core.errors import CheckFailed
from ascendtune.core.foreign_json import is_number, value_at
from ascendtune.core.rundir import RunDir
from ascendtune.machine.inventory import Accelerator

_MOST = 1e18


class DeviceSamples:
    """Samples of the vendor's tool during the measured steps.

    Args:
        look: returns the devices of the job as the tool reports them.
        steps: the measured steps.
    """

    def __init__(self, look: Callable[[], Sequence[Accelerator]], steps: range) -> None:
        self._look = look
        self._steps = steps
        self._samples: list[Sequence[Accelerator]] = []

    def take(self, run: RunDir) -> None:
        """Add a sample, if a measured step is running."""
        if self._is_measured(run):
            devices = self._look()
            # The call of the tool may have taken longer than the steps.
            if self._is_measured(run):
                self._samples.append(devices)

    def _is_measured(self, run: RunDir) -> bool:
        step = run.last_step()
        return step is not None and self._steps.start - 1 <= step < self._steps.stop - 1

    @property
    def memory_used_bytes(self) -> int | None:
        """Maximum of one device."""
        return max((each.memory_used_bytes for each in self._all() if each.memory_used_bytes is not None), default=None)

    @property
    def utilization_ratio(self) -> float | None:
        """Mean over samples and devices."""
        ratios = [each.utilization_ratio for each in self._all() if each.utilization_ratio is not None]
        return mean(ratios) if ratios else None

    @property
    def power_watts(self) -> float | None:
        """Sum over devices, as a mean over samples."""
        readings = [[each.power_watts for each in sample if each.power_watts is not None] for sample in self._samples]
        sums = [sum(each) for each in readings if each]
        return mean(sums) if sums else None

    def _all(self) -> list[Accelerator]:
        return [each for sample in self._samples for each in sample]


def read_repeat(run: RunDir, steps: range, samples: DeviceSamples) -> Repeat:
    """Read time, memory and utilisation of a run's measured steps.

    Args:
        steps: the measured steps.

    Raises:
        CheckFailed: the run has recorded none of them.
    """
    tokens, seconds, peak = [], [], None
    before: int | None = None
    for record in run.read_metrics():
        step = record.get("step")
        if not isinstance(step, int):
            continue
        took = (record.get("seconds") or {}).get("step")
        # A record counts if all steps since the previous record are measured.
        is_measured = before is not None and before >= steps.start - 1 and step < steps.stop
        if is_measured and is_number(took, 1e-9, _MOST) and is_number(record.get("tokens"), 1, _MOST):
            tokens.append(float(record["tokens"]))
            seconds.append(float(took))
            peak = _whole(record.get("memory_peak_bytes"))
        before = step
    if not tokens:
        raise CheckFailed(
            "no measured step is in the run's metrics",
            code="nothing-measured",
            remedy="give more --steps than the recipe's track.every_steps",
            where=run.metrics,
        )
    strategy = value_at(run.read(), "resolved", "strategy", "name")
    return Repeat(
        run=str(run),
        tokens_per_second=sum(tokens) / sum(seconds),
        median_tokens_per_second=median(each / took for each, took in zip(tokens, seconds, strict=True)),
        memory_peak_bytes=peak,
        memory_used_bytes=samples.memory_used_bytes,
        utilization_ratio=samples.utilization_ratio,
        power_watts=samples.power_watts,
        strategy=strategy if isinstance(strategy, str) else None,
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 < value < _MOST else None
