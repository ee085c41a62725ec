"""Callbacks of a run, and the one that writes metrics.jsonl and eval.jsonl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ascendtune.core.files import LineWriter
from ascendtune.core.rundir import RunDir


@dataclass(frozen=True)
class RunFacts:
    """Facts of a run before its first step."""

    name: str
    total_steps: int
    """The step that the run ends after, unless it stops early."""
    start_step: int
    """Steps that are already behind when a run resumes."""
    attempt: int


class Callback:
    """One method for each moment of a run; all do nothing unless overridden. Called on the main rank only."""

    def on_start(self, facts: RunFacts) -> None:
        """Before the first step."""

    def on_step(self, record: dict[str, Any]) -> None:
        """After a recorded step; `record` is the line of metrics.jsonl."""

    def on_evaluation(self, record: dict[str, Any]) -> None:
        """After an evaluation; `record` is the line of eval.jsonl."""

    def on_checkpoint(self, step: int) -> None:
        """When the checkpoint of `step` is complete. Called from the writing thread."""

    def on_end(self) -> None:
        """After the last step, however the run ended."""


class MetricsWriter(Callback):
    """Writes one line as soon as it is known, floats at full precision."""

    def __init__(self, run: RunDir) -> None:
        self._steps = LineWriter(run.metrics)
        self._evaluations = LineWriter(run.evaluations)

    def on_step(self, record: dict[str, Any]) -> None:
        self._steps.write(record)

    def on_evaluation(self, record: dict[str, Any]) -> None:
        self._evaluations.write(record)

    def on_end(self) -> None:
        self._steps.close()
        self._evaluations.close()
