"""Decides whether a run hangs, and which rank is to blame, from heartbeats and the time only."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ascendtune.job.hang.heartbeat import STARTUP, RankHeartbeat

_STEPS_KEPT = 64
_STEPS_TO_KNOW_THE_PACE = 5


@dataclass(frozen=True)
class Limits:
    """Longest time, in seconds, that a rank may be without a heartbeat.

    In a step that is `steps` × the median time of a step, but never less than `least_seconds` (a kernel is compiled for
    a new shape, a file server pauses) nor more than `first_steps_seconds`. That is also the limit until the pace is
    known, because compilers for NPU take many minutes; it is below the 30 minutes after which the process group aborts
    a collective, which destroys the evidence.
    """

    steps: float = 10
    least_seconds: float = 120
    first_steps_seconds: float = 1200
    # Phases that read or write large files take long without a heartbeat.
    phases: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType(
            {"preparation": 6 * 3600, "loading": 3600, "checkpoint": 3600, "export": 3600}
        )
    )

    def of(self, phase: str, pace_seconds: float | None) -> float:
        """The limit of a phase, in seconds; `pace_seconds` is the median time of a step, None if not yet known."""
        if phase in self.phases:
            return self.phases[phase]
        if phase in (STARTUP, "rendezvous", "evaluation") or pace_seconds is None:
            return self.first_steps_seconds
        return min(max(self.steps * pace_seconds, self.least_seconds), self.first_steps_seconds)


@dataclass(frozen=True)
class Hang:
    """No rank of this machine had a heartbeat for longer than its phase allows."""

    beats: tuple[RankHeartbeat, ...]
    """Heartbeats of these ranks."""
    silent_seconds: float
    """Time since the last heartbeat of any rank on this machine."""
    pace_seconds: float | None
    """Median time of a step; None in the first steps."""

    @property
    def step(self) -> int:
        return min(beat.step for beat in self.beats)


class Judge:
    """Judges the heartbeats repeatedly, and learns the pace of the steps from them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._attempt = 0
        self._seen = (0, 0.0)
        self._step_seconds = deque[float](maxlen=_STEPS_KEPT)

    def look(self, beats: Sequence[RankHeartbeat], now: float) -> Hang | None:
        """The hang that the heartbeats indicate, or None.

        A rank in a long phase (it writes a checkpoint) excuses all ranks that wait for it.

        Args:
            beats: heartbeats of the processes that run on this machine.
            now: the time on the clock of their `monotonic`.
        """
        if not beats:
            return None
        self._learn(beats, now)
        pace = self._pace()
        if any(now - beat.monotonic <= self._limits.of(beat.phase, pace) for beat in beats):
            return None
        silent_seconds = now - max(beat.monotonic for beat in beats)
        return Hang(tuple(beats), silent_seconds, pace)

    def _learn(self, beats: Sequence[RankHeartbeat], now: float) -> None:
        attempt, step = beats[0].attempt, min(beat.step for beat in beats)
        before, then = self._seen
        if attempt != self._attempt:
            self._attempt = attempt
            self._step_seconds.clear()
        elif step > before > 0:
            # Several steps may pass between two calls; a median of their means suffices.
            self._step_seconds.extend([(now - then) / (step - before)] * min(step - before, _STEPS_KEPT))
        elif step == before:
            return
        self._seen = (step, now)

    def _pace(self) -> float | None:
        known = len(self._step_seconds) >= _STEPS_TO_KNOW_THE_PACE
        return statistics.median(self._step_seconds) if known else None


def odd_ranks(
    beats: Sequence[RankHeartbeat],
    stopped: Collection[int] = (),
    apart: Collection[int] = (),
    waiting: Collection[int] = (),
) -> tuple[int, ...]:
    """The ranks that the others wait for; empty if they do not differ.

    Args:
        stopped: ranks whose processes are stopped (SIGSTOP).
        apart: ranks whose stacks are not in a collective while others' are.
        waiting: ranks whose stacks show that they wait. Stacks of other hosts are not known, and clocks differ.
    """
    if stopped:
        return tuple(sorted(stopped))
    places: dict[tuple[int, str], list[RankHeartbeat]] = {}
    for beat in beats:
        places.setdefault((beat.step, beat.phase), []).append(beat)
    if len(places) > 1:
        # Reading data needs no other rank; otherwise the minority is odd, of equal groups the one that stopped first.
        alone = [group for (_, phase), group in places.items() if phase == "data"]
        fewest = min(len(group) for group in places.values())
        few = [group for group in places.values() if len(group) == fewest]
        to_blame = [group for group in few if not all(beat.rank in waiting for beat in group)]
        candidates = alone or to_blame or few
        odd = min(candidates, key=lambda group: max(beat.monotonic for beat in group))
        return tuple(beat.rank for beat in odd)
    return tuple(sorted(apart)) if 0 < len(apart) < len(beats) else ()
