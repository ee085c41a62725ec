"""The callback that writes metrics.jsonl and eval.jsonl."""

from __future__ import annotations

from typing import Any

from ascendtune.core.records import LineWriter
from ascendtune.core.rundir import RunDir
from ascendtune.train.report.callback import Callback


class MetricsWriter(Callback):
    """Writes each record as one line at once, with floats at full precision."""

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
