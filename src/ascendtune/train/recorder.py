"""The records of a run: steps, evaluations, checkpoints. They are passed to the callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ascendtune.core.records import finite_or_none
from ascendtune.data.collate import hash_of_batch
from ascendtune.data.plan import PackedSequence
from ascendtune.train.batch import Batches
from ascendtune.train.counters import Counters
from ascendtune.train.evaluate import Evaluation
from ascendtune.train.flops import TokenFlops
from ascendtune.train.objective.base import Objective
from ascendtune.train.phases import Phases
from ascendtune.train.report.callback import Callback
from ascendtune.train.step_metrics import StepMetrics, added
from ascendtune.train.stop_request import StopRequest, agreed_signal, stop_flags
from ascendtune.train.strategy.base import Strategy


@dataclass
class Recorder:
    """Counts what is trained on and records it: `send` queues the copy to the host, later `take` and `write` follow."""

    strategy: Strategy
    objective: Objective
    batches: Batches
    """Batches of the training data."""
    flops: TokenFlops
    counters: Counters
    phases: Phases
    stop: StopRequest
    hashes_batches: bool
    """Whether a record contains the hash of its batch."""
    callbacks: list[Callback]
    """Callbacks of the main rank; empty on the others."""
    metrics: StepMetrics = field(default_factory=StepMetrics)
    """Sums of the steps since the last record."""
    _sent: StepMetrics | None = None
    """Sums of the last step to be recorded, on their way to the host."""
    _sent_signals: Callable[[], torch.Tensor] | None = None
    """Waits until the signals of all ranks are on the host, and returns them."""
    _window_start: float = field(default_factory=time.perf_counter)
    """Start time of the steps that are recorded next."""

    @property
    def has_arrived(self) -> bool:
        """Whether the numbers of the step to be recorded are on the host."""
        return self._sent is not None and self._sent.is_read

    def leave_out(self, seconds: float) -> None:
        """Exclude time from the step's duration: that of an evaluation, a checkpoint, a profile."""
        self._window_start += seconds

    def read(self, metrics: StepMetrics) -> None:
        """Wait for the numbers, unless they are read already. Every rank must call this."""
        if not metrics.is_read:
            with self.phases.phase("collective"):
                metrics.send(self.strategy, self.stop.signal_number)
                metrics.read()

    def send(self) -> None:
        """Queue the copy of this record's sums to the host, and start new sums."""
        metrics = self.metrics
        metrics.step, metrics.skipped_steps = self.counters.step, self.counters.skipped_steps
        with self.phases.phase("collective"):
            metrics.send(self.strategy, self.stop.signal_number)
        self._sent, self.metrics = metrics, StepMetrics()

    def take(self) -> StepMetrics | None:
        """Wait for the sums that were sent and not taken yet; None if there are none."""
        metrics, self._sent = self._sent, None
        if metrics is not None:
            self.read(metrics)
            self.counters.skipped_steps += metrics.overflowed
            metrics.skipped_steps += metrics.overflowed
        return metrics

    def send_signals(self) -> None:
        """Queue the all-reduce of signals after a step that is not recorded. Every rank must call this."""
        with self.phases.phase("collective"):
            flags = self.strategy.sum_on_device([*stop_flags(self.stop.signal_number)])
            self._sent_signals = self.strategy.device.copy_to_host(flags)

    def take_signal(self) -> int:
        """Wait for the result of `send_signals`: a signal that reached any rank, or 0."""
        sent, self._sent_signals = self._sent_signals, None
        if sent is None:
            return 0
        with self.phases.phase("collective"):
            return agreed_signal(sent().tolist())

    def write(self, metrics: StepMetrics) -> None:
        """Pass the record of a step, whose numbers have been read, to the callbacks."""
        counters = self.counters
        counters.tokens_seen += metrics.tokens
        counters.tokens_of_datasets = added(counters.tokens_of_datasets, metrics.tokens_of_datasets)
        read_at = time.perf_counter()
        elapsed = read_at - self._window_start
        device = self.strategy.device
        peak, useful = device.peak_flops, self.flops.useful_flops(metrics.tokens, metrics.labelled)
        record = {
            "attempt": self.phases.attempt,
            "step": metrics.step,
            "epoch": round(metrics.step / self.batches.plan.steps_per_epoch, 6),
            "loss": finite_or_none(metrics.loss),
            "grad_norm": finite_or_none(metrics.norm),
            **_all_finite(self.objective.to_metrics(metrics.extras)),
            "learning_rate": metrics.learning_rate,
            "tokens": metrics.tokens,
            "labelled_tokens": metrics.labelled,
            # Pairs or answers, if the loss is averaged over these instead of labelled tokens.
            **({"groups": metrics.units} if self.objective.unit == "group" else {}),
            "tokens_seen": counters.tokens_seen,
            **self._of_datasets(),
            "tokens_per_second": metrics.tokens / elapsed,
            "mfu": useful / elapsed / (peak * self.strategy.world_size) if peak else None,
            "memory_peak_bytes": device.memory_peak_bytes(),
            "batch_hash": self._hash(metrics.last_batch),
            "skipped_steps": metrics.skipped_steps,
            "seconds": {"step": round(elapsed, 6), **self.phases.take()},
        }
        for callback in self.callbacks:
            callback.on_step(_copy(record))
        # An accelerator computes meanwhile; on a CPU the callbacks' time is not part of a step.
        self._window_start = read_at if device.runs_asynchronously else time.perf_counter()

    def _of_datasets(self) -> dict[str, dict[str, int]]:
        """The tokens of each data set of a mixture so far."""
        names = self.batches.plan.datasets
        return {"tokens_of_datasets": dict(zip(names, self.counters.tokens_of_datasets, strict=True))} if names else {}

    def write_evaluation(self, evaluation: Evaluation, *, seconds: float) -> None:
        """Pass the record of an evaluation to the callbacks.

        Args:
            seconds: duration of the evaluation, which is not training time.
        """
        of_datasets = {name: _of_evaluation(each) for name, each in evaluation.of_datasets.items()}
        record = {
            "attempt": self.phases.attempt,
            "step": self.counters.step,
            **_of_evaluation(evaluation),
            **({"datasets": of_datasets} if of_datasets else {}),
            "data_hash": self.counters.evaluated_on,
            "seconds": seconds,
        }
        for callback in self.callbacks:
            callback.on_evaluation(_copy(record))
        self.leave_out(seconds)

    def announce_evaluated(self, done: int, total: int) -> None:
        """Notify the callbacks that `done` of `total` batches of an evaluation are done."""
        for callback in self.callbacks:
            callback.on_evaluation_progress(done, total)

    def announce_checkpoint(self, step: int) -> None:
        """Notify the callbacks that the checkpoint of this step is complete."""
        for callback in self.callbacks:
            callback.on_checkpoint(step)

    def _hash(self, sequences: list[PackedSequence]) -> str | None:
        is_required = self.hashes_batches and self.strategy.is_main
        return hash_of_batch(self.batches.dataset, sequences) if is_required else None


def _of_evaluation(evaluation: Evaluation) -> dict[str, float | None]:
    values = _all_finite({"loss": evaluation.loss, **evaluation.extras})
    return {**values, "labelled_tokens": evaluation.labelled_tokens}


def _all_finite(values: dict[str, float]) -> dict[str, float | None]:
    return {name: finite_or_none(value) for name, value in values.items()}


def _copy(record: dict[str, Any]) -> dict[str, Any]:
    """A copy for one callback: the display keeps the record, and a callback of `fit` may change it."""
    return {name: value.copy() if isinstance(value, dict) else value for name, value in record.items()}
