"""The moments of a run. One method, one moment; all do nothing unless overridden. Called on the main rank only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunFacts:
    """What is known before the first step."""

    name: str
    total_steps: int
    start_step: int
    """Steps that are already behind when a run resumes."""
    attempt: int


class Callback:
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
