"""What `comm bench --profile-step` makes of the notes of all ranks: compute, communication, waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from ascendtune.check.comm.start import Ran, Ranks
from ascendtune.check.finding import Finding, ok

WARM_UP, PLAIN, APART = 2, 5, 5
"""Steps of each sort, one after the other: not counted, as they are, and with nothing that overlaps."""
STEPS = WARM_UP + PLAIN + APART
_MUCH = 0.2
"""Share of a step that the average rank may wait before it is called much."""


@dataclass(frozen=True)
class Step:
    """A rank's median step. Parts in seconds, from steps in which nothing overlaps; they add up to `apart_seconds`."""

    rank: int
    plain_seconds: float
    """As it trains, communication overlapping with compute."""
    apart_seconds: float
    compute_seconds: float
    communication_seconds: float
    waiting_seconds: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def share(self, part: str) -> float:
        seconds: float = getattr(self, f"{part}_seconds")
        return seconds / self.apart_seconds


def steps_of(ran: Ran) -> list[Step]:
    """A step for each rank that has measured both sorts."""
    found = []
    for each in ran.notes:
        plain, apart = list(each.of("plain")), list(each.of("apart"))
        if plain and apart:
            # Of one step, not a median for each part: so they add up.
            middle = sorted(apart, key=lambda step: step["all"])[len(apart) // 2]
            rest = middle["all"] - middle["waiting"] - middle["communication"]
            usual = median(step["all"] for step in plain)
            found.append(
                Step(each.rank, usual, middle["all"], max(0.0, rest), middle["communication"], middle["waiting"])
            )
    return found


def sentence(steps: Sequence[Step], who: str) -> str:
    """The mean over ranks, and what overlapping saves."""
    plain, apart = _mean(steps, "plain"), _mean(steps, "apart")
    parts = ", ".join(f"{part} {_mean(steps, part) / apart:.0%}" for part in ("compute", "communication", "waiting"))
    saved = f"overlap hides {1 - plain / apart:.0%} of it" if plain < apart else "overlap hides nothing"
    return f"a step takes {plain:.3g} s, {who}; one thing after the other {apart:.3g} s: {parts}; {saved}"


def waiting(steps: Sequence[Step], ranks: Ranks) -> Finding:
    """Whether ranks wait much for each other, and for whom."""
    slowest = max(steps, key=lambda step: step.compute_seconds)
    share = _mean(steps, "waiting") / _mean(steps, "apart")
    said = f"ranks wait {share:.0%} of a step for each other"
    if share < _MUCH:
        return ok("waiting", said)
    return Finding(
        "waiting",
        "warning",
        f"{said}; {ranks.label(slowest.rank)} computes longest, {slowest.compute_seconds:.3g} s",
        expected=f"less than {_MUCH:.0%}",
        remedy="rows of very different length: data.packing; otherwise look at that device's clock, temperature and "
        "health, and at what else runs on its cores",
    )


def _mean(steps: Sequence[Step], part: str) -> float:
    return fmean(getattr(step, f"{part}_seconds") for step in steps)
