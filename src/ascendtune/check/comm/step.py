"""Result of `comm bench --profile-step`, from the notes of all ranks: compute, communication, waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from ascendtune.check.comm.start import RankGroup, RankResults
from ascendtune.check.finding import Finding, ok, warning

WARM_UP, PLAIN, APART = 2, 5, 5
"""Number of steps of each kind, in this order: not measured, normal, and without overlap."""
STEPS = WARM_UP + PLAIN + APART
_MUCH = 0.2
"""Mean share of a step spent waiting from which on there is a warning."""


@dataclass(frozen=True)
class StepTimes:
    """A rank's median step. Parts in seconds, from steps without overlap; they add up to `apart_seconds`."""

    rank: int
    plain_seconds: float
    """A normal step, in which communication overlaps with compute."""
    apart_seconds: float
    compute_seconds: float
    communication_seconds: float
    waiting_seconds: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def share(self, part: str) -> float:
        seconds: float = getattr(self, f"{part}_seconds")
        return seconds / self.apart_seconds


def steps_of(ran: RankResults) -> list[StepTimes]:
    """The step of each rank that has measured both kinds."""
    times = []
    for each in ran.notes:
        plain, separate = list(each.of("plain")), list(each.of("apart"))
        if plain and separate:
            # The parts of one step instead of the median of each part, so that they add up.
            middle = sorted(separate, key=lambda step: step["all"])[len(separate) // 2]
            rest = middle["all"] - middle["waiting"] - middle["communication"]
            usual = median(step["all"] for step in plain)
            times.append(
                StepTimes(each.rank, usual, middle["all"], max(0.0, rest), middle["communication"], middle["waiting"])
            )
    return times


def sentence(steps: Sequence[StepTimes], setup: str) -> str:
    """One sentence: means over ranks, and the time saved by overlap."""
    plain, separate = _mean(steps, "plain"), _mean(steps, "apart")
    parts = ", ".join(f"{part} {_mean(steps, part) / separate:.0%}" for part in ("compute", "communication", "waiting"))
    saved = f"overlap saves {1 - plain / separate:.0%} of it" if plain < separate else "overlap saves nothing"
    return f"a step takes {plain:.3g} s, {setup}; without overlap {separate:.3g} s: {parts}; {saved}"


def waiting(steps: Sequence[StepTimes], ranks: RankGroup) -> Finding:
    """The finding on the time that ranks wait for each other, with the rank that they wait for."""
    slowest = max(steps, key=lambda step: step.compute_seconds)
    share = _mean(steps, "waiting") / _mean(steps, "apart")
    text = f"ranks wait {share:.0%} of a step for each other"
    if share < _MUCH:
        return ok("waiting", text)
    return warning(
        "waiting",
        f"{text}; {ranks.label(slowest.rank)} computes the longest, {slowest.compute_seconds:.3g} s",
        expected=f"less than {_MUCH:.0%}",
        remedy="if rows differ much in length, use data.packing; otherwise check that device's clock, temperature and "
        "health, and other processes on its cores",
    )


def _mean(steps: Sequence[StepTimes], part: str) -> float:
    return fmean(getattr(step, f"{part}_seconds") for step in steps)
