"""The training loop. Read it top-down from `Loop.run`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from ascendtune.core.errors import MachineError
from ascendtune.core.log import warn
from ascendtune.core.rundir import RunDir
from ascendtune.data.plan import PackedSequence
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.adamw import KernelAdamW
from ascendtune.train.batch import Batches
from ascendtune.train.batch_feed import BatchFeed
from ascendtune.train.checkpoint.checkpointer import Checkpointer
from ascendtune.train.counters import Counters
from ascendtune.train.dump.step_dumps import StepDumps
from ascendtune.train.evaluate import evaluate
from ascendtune.train.loss_not_finite import loss_not_finite
from ascendtune.train.objective.base import Objective
from ascendtune.train.optimizer import Schedule
from ascendtune.train.phases import Phases
from ascendtune.train.precision import Precision
from ascendtune.train.profile.step_profile import StepProfile
from ascendtune.train.recorder import Recorder
from ascendtune.train.stop_request import StopRequest, stopped_after
from ascendtune.train.strategy.base import RootModule, Strategy

_STEPS_TO_A_STOP = 10
"""A signal that reached one rank is known to all after this many steps at most."""


@dataclass
class Loop:
    """Trains from `counters.step` to `schedule.total_steps`. Built by `setup.set_up`."""

    run_directory: RunDir
    recipe: Recipe
    strategy: Strategy
    precision: Precision
    """Precision of the forward pass."""
    root: RootModule
    """Gathers the full weights and calls the function that it is passed."""
    module: torch.nn.Module
    """`root`, wrapped by the strategy; training calls this one."""
    objective: Objective
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    """Scales fp16 losses."""
    schedule: Schedule
    batches: Batches
    """Batches of the training data."""
    held_out: Batches | None
    """Batches of the evaluation data."""
    activations: Callable[[], AbstractContextManager[Any]]
    """Returns a context for the forward pass, in which its activations may be offloaded."""
    checkpointer: Checkpointer
    checkpoint_every: int
    """Steps between two checkpoints; more than all steps: none is scheduled."""
    counters: Counters
    phases: Phases
    dumps: StepDumps
    profile: StepProfile
    stop: StopRequest
    recorder: Recorder
    model: Any
    """The model that is exported at the end: a transformers model, or the PeftModel around it."""
    tokenizer: Tokenizer
    export_dtype: torch.dtype
    """Dtype of the exported weights: for a base model that of its files, for adapters that of training."""

    def __post_init__(self) -> None:
        self._parameters = [each for each in self.objective.parameters() if each.requires_grad]
        self._keeps_checkpoints = self.checkpoint_every <= self.schedule.total_steps
        self._shares_casts = self.strategy.shares_casts(self.recipe.batch.accumulate)

    def run(self) -> str:
        """Train, and return why training ended: "all steps done" or "no improvement …".

        Raises:
            Stopped: a signal was received; the checkpoint of the last step is complete.
            CheckFailed: the loss or the gradient is not finite.
        """
        counters = self.counters
        self.module.train()
        # A signal may have stopped the run between a step and the evaluation that follows it.
        if self._should_evaluate(counters.step) and counters.evaluated_step < counters.step:
            self._evaluate()
        # The process may have been killed between the last evaluation and the export.
        if reason := counters.early_stop(self.recipe.eval.early_stop):
            return reason
        last, ended_because = self.last_step()
        with self._batch_source(last) as source:
            while counters.step < last:
                self.profile.begin_step(counters.step + 1, last=last)
                with self.dumps.step(counters.step + 1):
                    self._step(source)
                counters.step += 1
                if self._keeps_checkpoints:
                    self.checkpointer.preallocate()
                self._record(last)
                if self._should_evaluate(counters.step):
                    self._evaluate()
                    if reason := counters.early_stop(self.recipe.eval.early_stop):
                        self._save_last()
                        return reason
                if self._should_save(counters.step):
                    self._save()
                self.checkpointer.poll()
                self.recorder.leave_out(self.profile.end_step(counters.step))
        if counters.step >= self.schedule.total_steps:
            self._save_last()
        return ended_because

    @contextmanager
    def _batch_source(self, last: int) -> Iterator[Batches | BatchFeed]:
        """The source of batches for the steps up to `last`. After an error, the pending record is written."""
        feed = BatchFeed(self.batches, self.counters.step, last) if self.strategy.device.runs_asynchronously else None
        try:
            yield feed or self.batches
        except Exception:
            # A failed device cannot return the numbers. A loss that is not finite may have caused this error.
            with suppress(RuntimeError):
                self._write_record()
            raise
        finally:
            if feed is not None:
                feed.close()

    def last_step(self) -> tuple[int, str]:
        """The step after which the run ends, and why it ends there."""
        profile = self.recipe.profile
        ends = [(self.schedule.total_steps, "all steps done")]
        if step := self.recipe.align.stop_after:
            ends.append((step, f"align.stop_after is {step}"))
        if profile.only:
            ends.append((profile.window()[-1], "the last profiled step is done (profile.only)"))
        return min(ends, key=lambda end: end[0])

    def _step(self, source: Batches | BatchFeed) -> None:
        """Make one optimizer step over one global batch from `source`."""
        self.phases.step = self.counters.step + 1
        if self.recipe.on_nan == "dump":
            self._random_states = torch.get_rng_state(), self.strategy.device.random_state()
        sequences, sums, units, labelled = self._forward_backward(source)
        with self.phases.phase("optimizer"):
            self.recorder.metrics.add(sums, units=units, labelled=labelled, plan=self.batches.plan, batch=sequences)
            self._update()

    def _forward_backward(
        self, source: Batches | BatchFeed
    ) -> tuple[list[PackedSequence], dict[str, torch.Tensor], int, int]:
        """Compute the gradients of a global batch; return its sequences, sums of this rank, units, labelled tokens."""
        plan = self.batches.plan
        sequences, micro_batches = source.of_step(self.counters.step, context=partial(self.phases.phase, "data"))
        self.dumps.batch(sequences)
        # Every rank knows the whole batch, so the divisor of the loss needs no communication.
        labelled = plan.labelled_tokens(sequences)
        units = plan.groups(sequences) if self.objective.unit == "group" else labelled
        scale = self.strategy.gradient_scale() / units
        sums: dict[str, torch.Tensor] = {}
        with self.phases.phase("forward"), self.precision.autocast():
            self.objective.begin(self.batches.micro_batches(sequences, mismatched=True), self.root)
        with self.precision.shared_casts() if self._shares_casts else nullcontext():
            for batch in micro_batches:
                with nullcontext() if batch.is_last else self.strategy.no_sync(self.module):
                    with self.phases.phase("forward"), self.activations(), self.precision.autocast():
                        loss, extras = self.module(self.objective, batch)
                    with self.phases.phase("backward"):
                        scaled = loss * scale
                        self.dumps.loss(scaled, self.scaler)
                        self.strategy.backward(self.module, self.scaler.scale(scaled) if self.scaler else scaled)
                for name, value in (("loss", loss.detach()), *extras.items()):
                    sums[name] = sums[name] + value if name in sums else value
        return sequences, sums, units, labelled

    def _update(self) -> None:
        """Clip gradients, step the optimizer, zero the gradients.

        If `_checks_in_step`, a gradient that is not finite never reaches the weights.
        """
        rate = self.schedule.learning_rate(self.counters.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["learning_rate_factor"]
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        self.dumps.before_update()
        if self.strategy.clips_in_step:
            # DeepSpeed ZeRO clips, steps and skips overflows by itself; its norm is known after the step.
            self.optimizer.step()
        norm = self.strategy.grad_norm(self.module, self._parameters)
        metrics = self.recorder.metrics
        metrics.grad_norm, metrics.learning_rate = norm, rate
        if self._skips_overflows():
            metrics.in_range.append(self._is_in_range(norm))
        if self._checks_in_step() and not self._is_finite():
            self.counters.skipped_steps += 1
            metrics.drop_last()
        elif not self.strategy.clips_in_step:
            if (limit := self.recipe.optim.max_grad_norm) is not None:
                self._clip(limit, norm)
            if self.scaler is not None:
                self.scaler.step(self.optimizer)
            else:
                self.optimizer.step()
        if self.scaler is not None:
            self.scaler.update()
        self.optimizer.zero_grad()

    def _clip(self, limit: float, norm: torch.Tensor) -> None:
        if isinstance(self.optimizer, KernelAdamW):
            # The optimizer clips during its step, which reads the gradients anyway.
            self.optimizer.clip(limit, norm)
        else:
            self.strategy.clip(self._parameters, limit, norm)

    def _checks_in_step(self) -> bool:
        """Whether the update waits for loss and norm; if not, `_write_record` checks them.

        Gradient scalers check on the device. With `on_nan: stop`, steps after one that is not finite are discarded, so
        the device need not wait after each step.
        """
        if self._skips_overflows():
            return False
        if self.recipe.on_nan != "stop":
            return True
        is_read_anyway = not self.strategy.device.runs_asynchronously or self.dumps.is_dumping
        return is_read_anyway and self._should_record(self.counters.step + 1)

    def _skips_overflows(self) -> bool:
        """Whether the device skips steps with overflowing gradients, which are normal in fp16."""
        return self.scaler is not None or self.precision.skips_overflows

    def _is_in_range(self, norm: torch.Tensor) -> torch.Tensor:
        """() bool: whether the device makes this step; `norm`, () fp32, is the norm of its unscaled gradients."""
        if self.scaler is None:
            return norm.isfinite()
        # The scaler's own criterion: on chips that saturate, overflown gradients are finite.
        flags = self.scaler._found_inf_per_device(self.optimizer).values()
        return torch.stack([each.to(norm.device) for each in flags]).sum() == 0

    def _is_finite(self) -> bool:
        """Read loss and norm. If they are not finite, stop, or return False if the recipe skips such steps."""
        metrics = self.recorder.metrics
        self.recorder.read(metrics)
        if metrics.is_finite:
            return True
        if self.recipe.on_nan == "skip":
            return False
        step = self.counters.step + 1
        if self.recipe.on_nan == "dump":
            self._dump_again(step)
        raise loss_not_finite(step, metrics, self.recipe, self.precision, self.run_directory)

    def _dump_again(self, step: int) -> None:
        """Repeat the forward and backward pass of this step, with the same dropout, and dump it."""
        # DeepSpeed's engine has updated the weights already: the dump would be of other weights.
        if self.dumps.is_dumping or self.strategy.clips_in_step:
            return
        for parameter in self._parameters:
            parameter.grad = None
        of_host, of_device = self._random_states
        torch.set_rng_state(of_host)
        if of_device is not None:
            self.strategy.device.set_random_state(of_device)
        with self.dumps.step(step, again=True):
            self._forward_backward(self.batches)
            self.dumps.before_update()

    def _record(self, last: int) -> None:
        """Record this step if it is due; then stop if a signal was received.

        A record is written after the next step has been launched, so the device computes while the host waits for the
        numbers; before an evaluation, a checkpoint and the end (step `last`) it is written at once. Several ranks agree
        on signals with each record and, if records are rare, in between.
        """
        step = self.counters.step
        stop_signal = self._write_record() or self.recorder.take_signal()
        if step == last or self._should_record(step):
            self.recorder.send()
        elif self.strategy.world_size > 1 and step % _STEPS_TO_A_STOP == 0:
            self.recorder.send_signals()
        if step == last or self._records_at_once(step):
            stop_signal = self._write_record() or stop_signal
        if stop_signal:
            self._stop(stop_signal)

    def _write_record(self) -> int:
        """Write the line of the last recorded step if it is pending; return the signal that was received, or 0."""
        metrics = self.recorder.take()
        if metrics is None:
            return 0
        # A lower scale of the loss corrects gradients that overflow, but not a loss that is not finite.
        is_finite = math.isfinite(metrics.loss) if self._skips_overflows() else metrics.is_finite
        if self.recipe.on_nan != "skip" and not is_finite:
            raise loss_not_finite(metrics.step, metrics, self.recipe, self.precision, self.run_directory)
        self.recorder.write(metrics)
        return metrics.stop_signal

    def _record_now(self) -> None:
        """Write the lines of all steps up to this one: a run resumes right after a record."""
        if self.recorder.metrics.tokens:
            self.recorder.send()
        self._write_record()

    def _stop(self, number: int) -> None:
        self._record_now()
        self._save(completes=True)
        # When one rank exits, torchrun ends the others: all ranks wait here until each has finished.
        self.strategy.barrier()
        raise stopped_after(self.counters.step, number, self.run_directory, self.recipe)

    def _evaluate(self) -> None:
        counters, start = self.counters, time.perf_counter()
        assert self.held_out is not None
        with self.phases.phase("evaluation"):
            evaluation = evaluate(self.held_out, self.objective, self.root, self.precision, self._note_evaluated)
        is_best = counters.note_evaluation(evaluation.loss, self.recipe.eval.early_stop)
        self.recorder.write_evaluation(evaluation, seconds=time.perf_counter() - start)
        if is_best and self.recipe.checkpoint.best and counters.step < self.schedule.total_steps:
            self._save()

    def _note_evaluated(self, done: int, total: int) -> None:
        """Announce how far an evaluation is. Stop it if a signal was received: the resumed run begins with it."""
        self.phases.write_heartbeat()
        self.recorder.announce_evaluated(done, total)
        stop_signal = self.stop.signal_number if self.strategy.world_size == 1 else 0
        if self.strategy.world_size > 1 and done % _STEPS_TO_A_STOP == 0:
            stop_signal = self.recorder.take_signal()
            self.recorder.send_signals()
        if stop_signal:
            self._stop(stop_signal)

    def _save(self, *, completes: bool = False) -> None:
        """Begin a checkpoint, which is written in the background; `completes`: wait until it is complete."""
        counters, start = self.counters, time.perf_counter()
        if self.scaler is not None:
            counters.scaler = self.scaler.state_dict()
        with self.phases.phase("checkpoint"):
            self.checkpointer.save(
                counters.step,
                asdict(counters),
                protected=counters.best_step if self.recipe.checkpoint.best else None,
                on_complete=self.recorder.announce_checkpoint,
            )
            if completes:
                self.checkpointer.wait()
        self.recorder.leave_out(time.perf_counter() - start)

    def _save_last(self) -> None:
        """Complete the checkpoint of the last step, from which an export that failed is repeated."""
        if self._keeps_checkpoints or (self.recipe.checkpoint.best and self.counters.best_step == self.counters.step):
            self._record_now()
            self.checkpointer.wait()
            try:
                self._save(completes=True)
            except MachineError as error:
                if not self.checkpointer.fails_on_all_ranks(self.counters.step, error):
                    raise
                warn(f"step {self.counters.step}, the last one, has no checkpoint: {error.what}")

    def _should_record(self, step: int) -> bool:
        # Steps with a checkpoint are recorded, so a resumed run always starts right after a record.
        return (
            step % self.recipe.track.every_steps == 0
            or step == self.schedule.total_steps
            or self._should_save(step)
            or (self.recipe.checkpoint.best and self._should_evaluate(step))
            or self._is_stopped_alone()
        )

    def _records_at_once(self, step: int) -> bool:
        """Whether the record of `step` is written before the next step: because it is ready, or must not be delayed."""
        return (
            not self.strategy.device.runs_asynchronously
            or self.recorder.has_arrived
            or self._should_save(step)
            or self._should_evaluate(step)
            or self._is_stopped_alone()
        )

    def _is_stopped_alone(self) -> bool:
        # A single rank need not agree with others on a signal, so it stops without waiting for the next record.
        return self.strategy.world_size == 1 and self.stop.signal_number != 0

    def _should_save(self, step: int) -> bool:
        return step % self.checkpoint_every == 0 and step < self.schedule.total_steps

    def _should_evaluate(self, step: int) -> bool:
        every = self.recipe.eval.every_steps or self.batches.plan.steps_per_epoch
        return self.held_out is not None and (step % every == 0 or step == self.schedule.total_steps)
