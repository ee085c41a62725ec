"""Records a training loop of another program: any loop of torch on one device, with DDP, FSDP2 or DeepSpeed.

Hooks of torch show when a step is made: its losses are the scalars on which `backward` is called; it ends with the step
of the optimizer that trains the model, of DeepSpeed's engine, or of a GradScaler that skips it. The requested steps are
dumped like those of `align.dump_steps`. Compiled models run eagerly while recorded: compiled code does not run hooks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.utils import clip_grad
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from ascendtune.core.errors import InputError
from ascendtune.core.log import warn
from ascendtune.core.records import LineWriter, finite_or_none, write_json
from ascendtune.core.replaced import replaced
from ascendtune.machine.torch_backend.find import product_types, supports_fp64
from ascendtune.train.dump.hooks import ModuleHooks
from ascendtune.train.dump.names import plain_modules, plain_parameters
from ascendtune.train.dump.record import StepRecord, header_of
from ascendtune.train.dump.weight_hashes import hashes_of_weights
from ascendtune.train.dump.whole_tensors import WholeTensors, is_engine, whole_tensors_of
from ascendtune.train.gradient_norm import norm_of_all
from ascendtune.train.recording.continued import LoadedOptimizers, claim, continue_recording
from ascendtune.train.recording.losses import StepLosses
from ascendtune.train.recording.ranks import gather, rank, world_size
from ascendtune.train.recording.recorded_facts import write_facts
from ascendtune.train.recording.request import METRICS, RecordRequest
from ascendtune.train.recording.step_inputs import StepInputs, hash_of_parts

WRITER = "ascendtune.align.record"


class Recording:
    """One recorded training: `metrics.jsonl`, `recorded.json`, `start_weights.json` and `dump/` in a directory.

    A directory contains one training: another one is not recorded, unless it is a resumed one and the request says so.

    Args:
        command: the recorded command, for recorded.json.
    """

    def __init__(self, request: RecordRequest, command: list[str]) -> None:
        self._directory = Path(request.directory)
        self._steps = request.ranges()
        self._keeps_tensors = request.content == "tensors"
        self._command = command
        self._is_child = request.is_child
        self._resumes = request.resumes
        self._loaded = LoadedOptimizers()
        self._discovery: RemovableHandle | None = None
        self._model: nn.Module | None = None
        self._trained: dict[nn.Parameter, None] = {}
        self._whole = WholeTensors()
        self._engine: Any = None
        """DeepSpeed's engine, if it makes the updates."""
        self._step = self._first_step = 1
        self._losses = StepLosses((), sees_gradients=False)
        self._norm: torch.Tensor | None = None
        self._clips_to: float | None = None
        self._has_gradients = False
        """Whether the gradients of this step have been recorded."""
        self._has_backward = False
        """Whether a backward pass has run since the last update."""
        self._last_optimizer: Any = None
        """The optimizer whose update ended the last step."""
        self._has_warned = False
        self._unscaled: Any = WeakIdKeyDictionary()
        """Loss scaled by a GradScaler -> the loss and, in dumped steps, the factor: () each."""
        self._record: StepRecord | None = None
        self._hooks: ModuleHooks | None = None
        self._inputs: StepInputs | None = None
        self._metrics: LineWriter | None = None

    @contextmanager
    def active(self, model: nn.Module | None = None) -> Iterator[None]:
        """Context in which the training of `model` is recorded; without `model`, that of the first trained model."""
        with ExitStack() as stack:
            stack.callback(self._close)
            stack.callback(register_optimizer_step_pre_hook(self._before_update).remove)
            stack.callback(register_optimizer_step_post_hook(self._after_update).remove)
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(self._tracking_calls())
            if model is None:
                self._discovery = register_module_forward_pre_hook(self._find_model)
                stack.callback(self._discovery.remove)
            else:
                self._attach(model)
            stack.enter_context(self._loaded.tracked())
            yield

    @contextmanager
    def _tracking_calls(self) -> Iterator[None]:
        """Context in which calls of backward, of gradient clipping and of a GradScaler are tracked."""
        backward, clip = torch.autograd.backward, clip_grad._clip_grads_with_norm_
        scale, scaler_step = torch.amp.GradScaler.scale, torch.amp.GradScaler.step

        def backward_of(tensors: Any, *arguments: Any, **named: Any) -> None:
            if torch._C._current_graph_task_id() != -1 or self._model is None:
                # A call within a backward pass is that of activation checkpointing.
                backward(tensors, *arguments, **named)
                return
            with self._losses.backward_pass():
                self._note_loss(tensors)
                backward(tensors, *arguments, **named)

        def clip_with_norm(parameters: Any, limit: float, norm: torch.Tensor, *arguments: Any, **named: Any) -> None:
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            if not self._trained.keys().isdisjoint(parameters):
                self._norm, self._clips_to = norm, finite_or_none(float(limit))
                self._add_gradients()
            clip(parameters, limit, norm, *arguments, **named)

        def scale_of(scaler: Any, outputs: Any) -> Any:
            scaled = scale(scaler, outputs)
            if isinstance(outputs, torch.Tensor) and scaler.is_enabled():
                # Not scaled / outputs, since a loss may be 0. Reading the scale waits for the device.
                factor = torch.tensor(scaler.get_scale()) if self._record is not None else None
                self._unscaled[scaled] = outputs.detach(), factor
            return scaled

        def step_of(scaler: Any, optimizer: Any, *arguments: Any, **named: Any) -> Any:
            step = self._step
            result = scaler_step(scaler, optimizer, *arguments, **named)
            if self._step == step and self._has_backward and self._trains_model(optimizer):
                self._end_step(optimizer, norm=math.nan)
            return result

        with (
            replaced(torch.autograd, backward=backward_of),
            replaced(clip_grad, _clip_grads_with_norm_=clip_with_norm),
            replaced(torch.amp.GradScaler, scale=scale_of, step=step_of),
        ):
            yield

    def _close(self) -> None:
        if self._engine is not None:
            del self._engine._take_model_step
        if self._hooks is not None:
            self._hooks.remove()
        if self._inputs is not None:
            self._inputs.remove()
        if self._metrics is not None:
            self._metrics.close()
        # If this process was started by a recorded one, that one warns.
        file = self._directory / METRICS
        is_empty = not file.stat().st_size if file.exists() else not (self._directory / "dump").exists()
        if is_empty and not self._is_child and rank() == 0:
            warn(
                "no step of an optimizer was recorded: nothing was trained, or only in processes that are not followed"
            )

    def _find_model(self, module: nn.Module, _inputs: Any) -> None:
        """Take the outermost module of the first forward pass with gradients as the model."""
        if not torch.is_grad_enabled() or not any(each.requires_grad for each in module.parameters()):
            return
        assert self._discovery is not None
        self._discovery.remove()
        self._attach(module)
        if self._hooks is not None and module in plain_modules(module).values():
            # torch does not call the module's own hook this time, as it was registered during the call.
            self._hooks.enter(module)

    def _attach(self, model: nn.Module) -> None:
        whole = whole_tensors_of(model)
        first = next(model.parameters())
        self._device = first.device
        self._wide = torch.float64 if supports_fp64(first.device) else torch.float32
        if not self._is_first():
            return
        self._model, self._whole = model, whole
        self._trained = dict.fromkeys(plain_parameters(model).values())
        self._inputs = StepInputs(model)
        self._losses = StepLosses(self._trained, sees_gradients=not is_engine(model))
        if is_engine(model):
            self._track_updates(model)
        from_ranks = partial(gather, dtype=torch.int64, device=self._device)
        start = hashes_of_weights(model, from_ranks, whole.parameter if self._engine is not None else None)
        if self._resumes:
            self._step = self._first_step = self._resumed_at(start["hash"])
        if rank() == 0:
            if self._first_step == 1:
                write_json(self._directory / "start_weights.json", start)
            self._metrics = LineWriter(self._directory / METRICS)
        self._begin_step()

    def _is_first(self) -> bool:
        """Whether the directory contains no training yet. Every rank must call this."""
        is_free = rank() != 0 or claim(self._directory, resumes=self._resumes)
        return bool(gather([int(is_free)], dtype=torch.int64, device=self._device)[0][0])

    def _resumed_at(self, weights_hash: str) -> int:
        """The number of the first step of a resumed training. Every rank must call this.

        Raises:
            InputError: the training has made steps that were not recorded.
        """
        updates = self._loaded.updates(self._trained) if self._engine is None else self._engine.global_steps or None
        has_engine = self._engine is not None
        first = (
            continue_recording(self._directory, updates, weights_hash, counts_skipped=has_engine) if not rank() else 0
        )
        first_step: int = gather([first or 0], dtype=torch.int64, device=self._device)[0][0]
        if not first_step:
            raise InputError(
                f"the training continues after {updates} updates, which are more than were recorded",
                code="recorded-steps-missing",
                remedy="resume it from an earlier checkpoint, or record it into another directory",
                where=self._directory,
            )
        return first_step

    def _track_updates(self, engine: Any) -> None:
        """Track the engine's method that clips gradients and updates parameters, whatever its optimizer."""
        self._engine = engine
        update = engine._take_model_step

        def take_step(*arguments: Any, **named: Any) -> Any:
            self._add_gradients()
            self._add_parameters("parameter_before")
            skipped, norm = engine.skipped_steps, norm_of_all([each.grad for each in self._trained])
            result = update(*arguments, **named)
            engine_norm = engine.get_global_grad_norm()
            self._norm = norm if engine_norm is None else torch.as_tensor(float(engine_norm))
            if engine.skipped_steps > skipped:
                self._end_step(engine.optimizer, norm=math.nan)
            else:
                self._add_parameters("parameter_after")
                self._end_step(engine.optimizer)
            return result

        engine._take_model_step = take_step

    def _begin_step(self) -> None:
        assert self._model is not None
        self._norm, self._has_gradients = None, False
        if not any(self._step in each for each in self._steps):
            self._losses.begin(None)
            return
        self._record = StepRecord(
            header_of(
                writer=WRITER,
                step=self._step,
                rank=rank(),
                world_size=world_size(),
                level="module",
                keeps_tensors=self._keeps_tensors,
            ),
            wide=self._wide,
            keeps_tensors=self._keeps_tensors,
        )
        self._losses.begin(self._record)
        self._hooks = ModuleHooks(self._model, self._record)

    def _note_loss(self, tensors: Any) -> None:
        self._has_backward = True
        for tensor in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
            if tensor.numel() == 1:
                loss, factor = self._unscaled.get(tensor) or self._unscaled_by_engine(tensor.detach())
                if self._record is not None:
                    self._record.gradient_scale = factor
                self._losses.add(loss)

    def _unscaled_by_engine(self, loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The unscaled loss, (), and the factor, () fp32, by which the gradients of outputs are too large."""
        scale = self._whole.loss_scale
        if self._engine is not None and not getattr(self._engine, "_running_engine_backward", True):
            # `loss.backward()` was called instead of `engine.backward(loss)`: a hook on the output divides its
            # gradient.
            loss = loss / self._engine.gradient_accumulation_steps()
        return (loss, None) if scale == 1 else (loss / scale, torch.tensor(scale))

    def _before_update(self, optimizer: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not self._trains_model(optimizer):
            self._note_other_model()
            return
        # The first argument is the optimizer.
        if named.get("closure", arguments[1] if len(arguments) > 1 else None) is not None:
            # The closure computes the gradients within the step.
            self._has_backward = True
        elif self._is_same_step(optimizer):
            return
        else:
            self._finish_gradients()
        self._add_parameters("parameter_before")

    def _note_other_model(self) -> None:
        if self._model is None or self._engine is not None or not self._losses.note_other_model() or rank() != 0:
            return
        kind = type(self._model).__name__
        warn(f"another model is trained beside the {kind} that is recorded: its losses and updates are not recorded")

    def _is_same_step(self, optimizer: Any) -> bool:
        """Whether this is part of the last step: a second optimizer updates its share of the parameters."""
        return not self._has_backward and self._last_optimizer not in (None, optimizer)

    def _finish_gradients(self) -> None:
        self._add_gradients()
        if self._norm is None:
            self._norm = norm_of_all([each.grad for each in self._trained])

    def _after_update(self, optimizer: Any, *_: Any) -> None:
        if not self._trains_model(optimizer):
            return
        if self._is_same_step(optimizer):
            if not self._has_warned and rank() == 0:
                warn("several optimizers train this model: dumped updates are those of the first one alone")
            self._has_warned = True
            return
        self._finish_gradients()
        self._add_parameters("parameter_after")
        self._end_step(optimizer)

    def _end_step(self, optimizer: Any, norm: float | None = None) -> None:
        """Write the record of the step.

        Args:
            norm: norm of the gradients, if a GradScaler has skipped the update.
        """
        if norm is not None:
            self._norm = torch.tensor(norm)
        self._last_optimizer, self._has_backward = optimizer, False
        # Before the dump is written: losses of other models are removed from it.
        loss = self._losses.total(self._wide)
        if self._record is not None:
            assert self._hooks is not None
            self._hooks.remove()
            self._record.write(self._directory / "dump")
            self._record = self._hooks = None
        self._write_metrics(optimizer, loss)
        self._step += 1
        self._begin_step()

    def _trains_model(self, optimizer: Any) -> bool:
        """Whether its step ends a training step; not if DeepSpeed's engine makes the updates."""
        if self._engine is not None:
            return False
        return any(not self._trained.keys().isdisjoint(group["params"]) for group in optimizer.param_groups)

    def _add_gradients(self) -> None:
        """Record the gradients, before they are clipped."""
        if self._record is None or self._has_gradients:
            return
        self._has_gradients = True
        assert self._model is not None
        for name, parameter in plain_parameters(self._model).items():
            gradient = self._whole.gradient(parameter)
            if gradient is not None and self._writes(parameter):
                self._record.add("gradient", name, "gradient", "", gradient)

    def _add_parameters(self, phase: str) -> None:
        if self._record is None or self._model is None:
            return
        for name, parameter in plain_parameters(self._model).items():
            whole = self._whole.parameter(parameter)
            if self._writes(parameter):
                self._record.add(phase, name, "parameter", "", whole)

    def _writes(self, parameter: nn.Parameter) -> bool:
        """Whether this rank records `parameter`: sharded tensors are gathered by all ranks and recorded by rank 0."""
        return rank() == 0 or not self._whole.is_divided(parameter)

    def _write_metrics(self, optimizer: Any, loss: float) -> None:
        """Write mean loss over ranks, gradient norm, learning rate and hash of the step: one synchronisation."""
        assert self._inputs is not None
        of_ranks = gather([loss, *self._inputs.end_step()], dtype=self._wide, device=self._device)
        losses = [each[0] for each in of_ranks]
        norm = float(self._norm.full_tensor() if isinstance(self._norm, DTensor) else self._norm)  # type: ignore[arg-type]
        if self._metrics is None:
            return
        if self._step == self._first_step:
            facts = {
                "command": self._command,
                "world_size": world_size(),
                "precision": self._inputs.precision,
                "fp32_products": product_types(self._device),
                "max_grad_norm": self._clips_to,
            }
            write_facts(self._directory, facts, optimizer, step=self._step)
        record = {
            "step": self._step,
            "loss": finite_or_none(math.fsum(losses) / len(losses)),
            "grad_norm": finite_or_none(norm),
            "learning_rate": finite_or_none(float(optimizer.param_groups[0]["lr"])),
            "batch_hash": hash_of_parts([each[1:] for each in of_ranks]),
        }
        self._metrics.write(record)
