"""The interface of callbacks, which `Recorder` calls with the records of a run. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunFacts:
    """Facts of a run before its first step."""

    name: str
    total_steps: int
    """The step after which the run ends, unless it stops early."""
    start_step: int
    """Number of steps made before this attempt: 0, or the step that the run resumes from."""
    attempt: int


class Callback:
    """One method for each event of a run, called on the main rank only; the methods of this class do nothing."""

    def on_start(self, facts: RunFacts) -> None:
        """Called before the first step."""

    def on_step(self, record: dict[str, Any]) -> None:
        """Called after a recorded step; `record` is the line of metrics.jsonl."""

    def on_evaluation_progress(self, done: int, total: int) -> None:
        """Called before each batch of an evaluation: `done` of `total` batches are done."""

    def on_evaluation(self, record: dict[str, Any]) -> None:
        """Called after an evaluation; `record` is the line of eval.jsonl."""

    def on_checkpoint(self, step: int) -> None:
        """Called from the writing thread when the checkpoint of `step` is complete."""

    def on_end(self) -> None:
        """Called when the run has ended, also after an error."""
