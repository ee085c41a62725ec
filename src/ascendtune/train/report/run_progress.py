"""The progress of a run: its last records, its speed, and the time since its last heartbeat."""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import Any

from ascendtune.core.silent_ranks import is_silent, silence_in_words
from ascendtune.core.units import format_bytes, format_duration
from ascendtune.train.report.callback import RunFacts
from ascendtune.train.report.summary import SHOWN_EXTRAS

_RECENT = 32
"""Number of records from which speed and ETA are computed."""
_COURSE = 24
"""Number of bars of the loss curve on a wide terminal, each for an equal share of all steps."""

_MOST_DATASETS = 4
"""Data sets of an evaluation that are shown one by one during the run."""


class RunProgress:
    """The progress of a run."""

    def __init__(self, name: str, facts: RunFacts) -> None:
        self.name = name
        self.step = facts.start_step
        self.total = facts.total_steps
        self.record: dict[str, Any] | None = None
        self.evaluation: dict[str, Any] | None = None
        self.evaluating: str | None = None
        """Progress of the current evaluation as text; None before its first batch is done, and after the last one."""
        self.silent_seconds: float | None = None
        """Seconds since the last heartbeat; None while heartbeats are on time."""
        self._evaluation_start = 0.0
        self._start = facts.start_step
        self._course = [(0.0, 0)] * _COURSE
        self._start_time = time.monotonic()
        self._recent: deque[tuple[float, dict[str, Any]]] = deque(maxlen=_RECENT)
        self._step_seconds: deque[float] = deque(maxlen=_RECENT)

    def add(self, record: dict[str, Any]) -> None:
        self._step_seconds.append(record["seconds"]["step"] / (record["step"] - self.step))
        self.record, self.step = record, record["step"]
        self._recent.append((time.monotonic(), record))
        if record["loss"] is None:  # every step since the last record was skipped
            return
        at = (self.step - 1 - self._start) * _COURSE // (self.total - self._start)
        total, count = self._course[at]
        self._course[at] = (total + record["loss"], count + 1)

    def note_evaluated(self, done: int, total: int) -> None:
        """Note that `done` of `total` batches of the current evaluation are done."""
        now = time.monotonic()
        if not done:
            self._evaluation_start, self.evaluating = now, None
            return
        left = format_duration((now - self._evaluation_start) / done * (total - done))
        self.evaluating = f"evaluating: {done:,} of {total:,} batches, {left} left"

    def note_silence(self, beat: tuple[str, float] | None) -> bool:
        """Compare this rank's last heartbeat with the pace; return whether the silence has begun, grown or ended."""
        before = self.silent_seconds
        self.silent_seconds = None
        if beat is not None:
            phase, moment = beat
            seconds = time.monotonic() - moment
            if is_silent(phase, seconds, self.usual_step_seconds):
                self.silent_seconds = seconds
        return before is not None or self.silent_seconds is not None

    @property
    def usual_step_seconds(self) -> float | None:
        """Median over the recent records, each of which may cover several steps."""
        return statistics.median(self._step_seconds) if self._step_seconds else None

    @property
    def silence(self) -> str | None:
        """The silence as a sentence; None while heartbeats are on time."""
        if self.silent_seconds is None:
            return None
        return silence_in_words(self.silent_seconds, self.usual_step_seconds)

    @property
    def elapsed(self) -> float:
        """Duration of this attempt in seconds."""
        return time.monotonic() - self._start_time

    @property
    def tokens_per_second(self) -> float | None:
        """Mean over the recent records: single short steps vary too much."""
        seconds: float = sum(record["seconds"]["step"] for _, record in self._recent)
        return sum(record["tokens"] for _, record in self._recent) / seconds if seconds else None

    @property
    def eta(self) -> float | None:
        """Seconds to the last step at the recent pace, including evaluations and checkpoints; None at first.

        The first step is slower, so it is not part of the pace.
        """
        if len(self._recent) < 2:
            return None
        (start, first), (now, last) = self._recent[0], self._recent[-1]
        pace: float = (now - start) / (last["step"] - first["step"])
        return pace * (self.total - self.step)

    @property
    def loss_curve(self) -> list[float]:
        """Mean loss of each share of the steps made so far."""
        return [total / count for total, count in self._course if count]

    def pieces(self) -> list[str]:
        """The known values as text: `loss 3.214`, `lr 9.9e-05`, …"""
        if self.record is None:
            return ["waiting for the first step"]
        speed, memory = self.tokens_per_second, self.record["memory_peak_bytes"]
        return [
            f"loss {shown_loss(self.record)}",
            *shown_extras(self.record),
            f"lr {self.record['learning_rate']:.1e}",
            *([f"{speed:,.0f} tok/s"] if speed else []),
            *([format_bytes(memory)] if memory else []),
        ]


class RedrawnScreen:
    """A display that is redrawn as a whole: at each event, but for steps only at intervals."""

    redraw_seconds: float

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress
        self._next = 0.0

    def draw(self) -> None:
        raise NotImplementedError

    def stepped(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self.redraw_seconds
            self.draw()

    def evaluating(self) -> None:
        self.stepped()

    def evaluated(self) -> None:
        self.draw()

    def silence_changed(self) -> None:
        self.draw()

    def close(self) -> None:
        self.draw()


def shown_loss(record: dict[str, Any]) -> str:
    return "not a number" if record["loss"] is None else f"{record['loss']:#.4g}"


def shown_extras(record: dict[str, Any]) -> list[str]:
    return [f"{name} {record[name]:.3g}" for name in SHOWN_EXTRAS if record.get(name) is not None]


def shown_datasets(evaluation: dict[str, Any]) -> list[str]:
    """The loss of each data set of a mixture; nothing if these are many."""
    of_datasets = evaluation.get("datasets") or {}
    shown = of_datasets.items() if len(of_datasets) <= _MOST_DATASETS else ()
    return [f"{name} {shown_loss(values)}" for name, values in shown]
