"""The training loop: read it top-down from `Loop.run`."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch

from ascendtune.core.errors import CheckFailed, Stopped
from ascendtune.data.collate import hash_of_batch
from ascendtune.data.plan import PackedSequence
from ascendtune.train.batch import DeviceBatch, batches_of_rank
from ascendtune.train.parts import Counters, Parts
from ascendtune.train.step_metrics import StepMetrics


class Loop:
    """Trains from `counters.step` to `parts.total_steps`."""

    def __init__(self, parts: Parts, counters: Counters) -> None:
        self.parts = parts
        self.counters = counters
        self._scaler = parts.precision.scaler(parts.strategy.device)
        if self._scaler is not None and counters.scaler:
            self._scaler.load_state_dict(counters.scaler)
        self._trainable = [each for each in parts.objective.parameters() if each.requires_grad]
        self._window = StepMetrics(time.perf_counter())

    def run(self) -> str:
        """Train; returns why it ended: "all steps done" or "no improvement …".

        Raises:
            Stopped: a signal came; a checkpoint of the last step is complete.
            CheckFailed: the loss or the gradient is not a number.
        """
        parts, counters = self.parts, self.counters
        parts.module.train()
        # A run that was stopped by a signal left between a step and the evaluation that follows it.
        if self._evaluates(counters.step) and counters.evaluated_step < counters.step and (reason := self._evaluate()):
            return reason
        while counters.step < parts.total_steps:
            self._step()
            counters.step += 1
            if self._recorded(counters.step):
                self._record()
            if self._evaluates(counters.step) and (reason := self._evaluate()):
                return reason
            if self._checkpoints(counters.step):
                self._save()
            parts.checkpointer.poll()
        return "all steps done"

    def _step(self) -> None:
        """One optimiser step over one global batch."""
        parts, counters, window = self.parts, self.counters, self._window
        parts.phases.step = counters.step + 1
        sequences = parts.plan.batch(counters.step)
        # Every rank knows the whole batch, so the divisor of the loss needs no communication.
        units = parts.units(sequences)
        scale = parts.strategy.gradient_scale() / units
        sums: dict[str, torch.Tensor] = {}
        with parts.phases.phase("forward"), parts.precision.autocast():
            make = parts.batches.make_mismatched
            parts.objective.begin(batches_of_rank(make, sequences, parts.strategy, parts.per_device))
        for batch, is_last in self._micro_batches(sequences):
            sync = nullcontext() if is_last else parts.strategy.no_sync(parts.module)
            with sync:
                with parts.phases.phase("forward"), parts.activations(), parts.precision.autocast():
                    loss, extras = parts.module(batch)
                with parts.phases.phase("backward"):
                    scaled = loss * scale
                    parts.strategy.backward(self._scaler.scale(scaled) if self._scaler else scaled)
            for name, value in (("loss", loss.detach()), *extras.items()):
                sums[name] = sums[name] + value if name in sums else value
        with parts.phases.phase("optimizer"):
            window.add(
                sums,
                units=units,
                labelled=parts.plan.labelled_tokens(sequences) if parts.counts_groups else units,
                tokens=parts.plan.tokens(sequences),
                batch=sequences,
            )
            self._update(window)

    def _micro_batches(self, sequences: list[PackedSequence]) -> Iterator[tuple[DeviceBatch, bool]]:
        """This rank's part of the step, and whether it is the last micro-batch."""
        parts = self.parts
        batches = batches_of_rank(parts.batches.make, sequences, parts.strategy, parts.per_device)
        last = math.ceil(len(sequences) / (parts.per_device * parts.strategy.world_size)) - 1
        for number in range(last + 1):
            with parts.phases.phase("data"):
                batch = next(batches)
            yield batch, number == last

    def _update(self, window: StepMetrics) -> None:
        """Clip, step, forget the gradients. In a checked step what is not a number never reaches the weights."""
        parts, optimizer = self.parts, self.parts.optimizer
        rate = parts.schedule.learning_rate(self.counters.step)
        for group in optimizer.param_groups:
            group["lr"] = rate * group["learning_rate_factor"]
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)
        norm = parts.strategy.clip(self._trainable, parts.recipe.optim.max_grad_norm)
        window.grad_norm, window.learning_rate = norm, rate
        if self._must_check() and not self._is_finite(window, norm):
            self.counters.skipped_steps += 1
            window.leave_out_last()
        elif self._scaler is not None:
            self._scaler.step(optimizer)
        else:
            optimizer.step()
        if self._scaler is not None:
            self._scaler.update()
        optimizer.zero_grad(set_to_none=True)

    def _must_check(self) -> bool:
        # Looking costs a synchronisation, which a recorded step pays anyway. The scaler looks by itself, on the device.
        looked_at = self._scaler is not None or self.parts.strategy.leaves_out_overflows
        return not looked_at and (self._recorded(self.counters.step + 1) or self.parts.recipe.on_nan == "skip")

    def _is_finite(self, window: StepMetrics, norm: torch.Tensor) -> bool:
        """Read loss and norm; stop, or say whether to skip, when they are not numbers."""
        with self.parts.phases.phase("collective"):
            window.read(self.parts.strategy, self.parts.stop.signal_number)
        if math.isfinite(window.loss) and math.isfinite(window.norm):
            return True
        if self.parts.recipe.on_nan == "skip":
            return False
        step = self.counters.step + 1
        raise CheckFailed(
            f"step {step}: loss {window.loss}, gradient norm {window.norm}: not a number",
            remedy="lower optim.learning_rate, add optim.warmup_ratio, or try precision: fp32; the weights are those "
            "before this step. on_nan: skip leaves such steps out",
            where=self.parts.run.metrics,
        )

    def _record(self) -> None:
        """Write the line of this step, then see whether anybody asked for the end."""
        parts, counters, window = self.parts, self.counters, self._window
        if not window.is_read:
            with parts.phases.phase("collective"):
                window.read(parts.strategy, parts.stop.signal_number)
        counters.tokens_seen += window.tokens
        elapsed = time.perf_counter() - window.begun
        speed = window.tokens / elapsed
        peak = parts.strategy.device.peak_flops
        self._tell(
            "on_step",
            {
                "attempt": parts.attempt,
                "step": counters.step,
                "epoch": round(counters.step / parts.plan.steps_per_epoch, 6),
                "loss": window.loss if math.isfinite(window.loss) else None,
                "grad_norm": window.norm if math.isfinite(window.norm) else None,
                **_finite(parts.objective.recorded(window.extras)),
                "learning_rate": window.learning_rate,
                "tokens": window.tokens,
                "labelled_tokens": window.labelled,
                "tokens_seen": counters.tokens_seen,
                "tokens_per_second": speed,
                "mfu": parts.flops_per_token * speed / (peak * parts.strategy.world_size) if peak else None,
                "memory_peak_bytes": parts.strategy.device.memory_peak_bytes(),
                "batch_hash": self._hash(window.last_batch),
                "skipped_steps": counters.skipped_steps,
                "seconds": {"step": round(elapsed, 6), **parts.phases.take()},
            },
        )
        asked = window.asked_to_stop
        self._window = StepMetrics(time.perf_counter())
        if asked:
            self._stop(asked)

    def _hash(self, sequences: list[PackedSequence]) -> str | None:
        parts = self.parts
        return (
            hash_of_batch(parts.dataset, sequences)
            if parts.recipe.align.batch_hash and parts.strategy.is_main
            else None
        )

    def _stop(self, number: int) -> None:
        self._save()
        self.parts.checkpointer.wait()
        # The first rank to leave makes torchrun end the others: nobody leaves before all are done.
        self.parts.strategy.barrier()
        step = self.counters.step
        extra = "" if self.parts.recipe.checkpoint.resume == "auto" else " with checkpoint.resume=auto"
        raise Stopped(
            f"stopped by {signal.Signals(number).name} after step {step}, with a checkpoint",
            remedy=f"give the same command again{extra} to go on from there",
            signal_number=number,
            where=self.parts.run.checkpoint(step),
        )

    def _evaluate(self) -> str | None:
        """Evaluate; returns the reason to end early, if there is one."""
        parts, counters, evaluation = self.parts, self.counters, self.parts.evaluation
        assert evaluation is not None
        begun = time.perf_counter()
        with parts.phases.phase("evaluation"):
            loss, extras = evaluation.run(parts.objective, parts.phases.pulse)
        early = parts.recipe.eval.early_stop
        is_best = counters.note_evaluation(loss, min_improvement=early.min_improvement if early else 0.0)
        seconds = time.perf_counter() - begun
        record = {
            "attempt": parts.attempt,
            "step": counters.step,
            "loss": loss if math.isfinite(loss) else None,
            **_finite(extras),
            "labelled_tokens": evaluation.labelled,
            "seconds": seconds,
        }
        self._tell("on_evaluation", record)
        # Evaluation is not training time: the next record's speed begins after it.
        self._window.begun += seconds
        if is_best and parts.recipe.checkpoint.best:
            parts.checkpointer.protected = counters.step
            self._save()
        if early and counters.worse_evaluations >= early.patience:
            enough = f" of {early.min_improvement:g}" if early.min_improvement else ""
            return f"no improvement{enough} in {early.patience} evaluations; the best was step {counters.best_step}"
        return None

    def _save(self) -> None:
        parts, begun = self.parts, time.perf_counter()
        if self._scaler is not None:
            self.counters.scaler = self._scaler.state_dict()
        with parts.phases.phase("checkpoint"):
            parts.checkpointer.save(self.counters.step, asdict(self.counters))
        self._window.begun += time.perf_counter() - begun

    def _recorded(self, step: int) -> bool:
        # Steps with a checkpoint are recorded, so that a resumed run never begins inside a window.
        return (
            step % self.parts.recipe.track.every_steps == 0
            or step == self.parts.total_steps
            or self._checkpoints(step)
            or (self.parts.recipe.checkpoint.best and self._evaluates(step))
            # Alone, nobody has to agree: a stop need not wait for the next record.
            or (self.parts.strategy.world_size == 1 and self.parts.stop.signal_number != 0)
        )

    def _checkpoints(self, step: int) -> bool:
        return step % self.parts.checkpoint_every == 0 and step < self.parts.total_steps

    def _evaluates(self, step: int) -> bool:
        if self.parts.evaluation is None:
            return False
        every = self.parts.recipe.eval.every_steps or self.parts.plan.steps_per_epoch
        return step % every == 0 or step == self.parts.total_steps

    def _tell(self, moment: str, record: dict[str, Any]) -> None:
        if self.parts.strategy.is_main:
            for callback in self.parts.callbacks:
                getattr(callback, moment)(record)


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    """JSON has no word for what is not a number."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
