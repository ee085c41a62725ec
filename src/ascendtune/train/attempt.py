"""One attempt at a run, in one of its processes: from a run directory to a trained model and a note of how it ended."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ascendtune import __version__
from ascendtune.core import log
from ascendtune.core.directories import cache_directory
from ascendtune.core.errors import AscendtuneError, CheckFailed, MachineError, Stopped, disk_fault
from ascendtune.core.files import file_lock
from ascendtune.core.rundir import OUT_OF_MEMORY, RunDir, State, exit_cause_of_worker
from ascendtune.data.prepare import Prepared, open_prepared
from ascendtune.machine.torch_backend.device import Device
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.build import Built, build
from ascendtune.train.export import export_model, exported_parameters
from ascendtune.train.loop import Loop
from ascendtune.train.parts import Counters
from ascendtune.train.phases import Phases
from ascendtune.train.prepare import prepare_data
from ascendtune.train.report.callback import Callback, RunFacts
from ascendtune.train.report.metrics import MetricsWriter
from ascendtune.train.report.picture import draw
from ascendtune.train.report.progress import ProgressDisplay, show_summary
from ascendtune.train.report.summary import summary_lines
from ascendtune.train.strategy.base import Strategy
from ascendtune.train.strategy.choose import join
from ascendtune.train.strategy.group import started_by_torchrun


def train(run: RunDir) -> None:
    """Train in `run` until it is finished, stopped or wrong; its run.json says which.

    Raises:
        AscendtuneError: with the exit code that the process should end with.
    """
    record = run.read()
    # A checkpoint asked for by its path may be one of a finished run: that is meant.
    if record["state"] == "finished" and not record.get("resume_from"):
        log.say(f"{run} has finished; nothing to do")
        return
    recipe = Recipe.load(run.recipe)
    rank = int(os.environ.get("RANK", "0"))
    with ExitStack() as stack:
        if rank == 0 and not stack.enter_context(file_lock(run.lock, wait=False)):
            raise MachineError(
                "this run is being trained by another process",
                remedy="wait for it, or use another name",
                where=run.path,
            )
        try:
            _train(run, recipe, stack)
        except BaseException as error:
            if _is_echo(error):
                raise CheckFailed(
                    "the connection to another rank broke", remedy="what ended that one is the cause", where=run.logs
                ) from error
            if not isinstance(error, KeyboardInterrupt):
                run.require_present()
            ours = _translated(error)
            _note_end(run, ours or error, rank)
            if ours is None or ours is error:
                raise
            raise ours from error


def _train(run: RunDir, recipe: Recipe, stack: ExitStack) -> None:
    _be_deterministic(recipe, stack)
    attempt = len(run.read()["attempts"]) + 1
    phases = Phases(run.heartbeats / f"rank_{os.environ.get('RANK', '0')}.json", attempt)
    stack.callback(phases.close)
    # Data first: while one rank tokenises, no collective may be waiting.
    prepared = _open_data(run, recipe, phases)
    phases.enter("rendezvous")
    strategy = _join(run, recipe)
    stack.callback(strategy.close)
    main_callbacks: list[Callback] = []
    where = _where(strategy)
    if strategy.is_main:
        run.begin_attempt(where)
    phases.enter("loading")
    built = build(run, recipe, strategy, prepared, attempt=attempt, callbacks=main_callbacks, phases=phases)
    built.parts.stop.listen()
    stack.callback(built.parts.stop.ignore)
    counters = _resume(run, built)
    if strategy.is_main:
        _write_facts(run, built)
        main_callbacks += _callbacks(run, recipe)
        facts = RunFacts(recipe.name, built.parts.total_steps, counters.step, attempt)
        for callback in main_callbacks:
            callback.on_start(facts)
    try:
        reason = Loop(built.parts, counters).run()
        built.parts.checkpointer.wait()
        with phases.phase("export"):
            _finish(run, built, counters, reason)
    finally:
        if strategy.is_main:
            _wind_up(run, main_callbacks)
    if strategy.is_main:
        show_summary(summary_lines(run))


def _wind_up(run: RunDir, callbacks: list[Callback]) -> None:
    """Close what records the run, and draw it. Trouble here must not hide how the run ended."""
    closing: list[Callable[[], object]] = [callback.on_end for callback in callbacks]
    if not isinstance(sys.exception(), KeyboardInterrupt):
        closing.append(partial(draw, run))
    for action in closing:
        try:
            action()
        except AscendtuneError as error:
            log.warn(str(error))


def _be_deterministic(recipe: Recipe, stack: ExitStack) -> None:
    if recipe.deterministic:
        # cuBLAS refuses deterministic mode without a workspace of fixed size (CUDA documentation, cuBLAS).
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        stack.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
        torch.use_deterministic_algorithms(True)


def _open_data(run: RunDir, recipe: Recipe, phases: Phases) -> Prepared:
    record = run.read()
    try:
        return open_prepared(cache_directory() / "tokens" / record["data_hash"])
    except MachineError:
        # Another node, or an emptied cache: the lock in the cache lets one rank build and the others find it.
        return prepare_data(recipe, Path(record["model_directory"]), lambda *_: phases.pulse())


def _join(run: RunDir, recipe: Recipe) -> Strategy:
    device: Device = find_device(int(os.environ.get("LOCAL_RANK", "0")))
    device.activate()
    return join(recipe, device, Path(run.read()["model_directory"]))


def _where(strategy: Strategy) -> dict[str, Any]:
    """Asked of all ranks at once, so nobody is past here before the others have arrived."""
    host = socket.gethostname()
    hosts = list(dict.fromkeys(strategy.gather(host)))
    return {"host": host, "hosts": hosts, "world_size": strategy.world_size, "device": strategy.device.name}


def _resume(run: RunDir, built: Built) -> Counters:
    """Load the checkpoint that this start goes on from, if any, and forget what was recorded after it."""
    checkpointer, strategy = built.parts.checkpointer, built.parts.strategy
    asked = run.read().get("resume_from")
    steps = run.checkpoint_steps()
    source = Path(asked) if asked else run.checkpoint(steps[-1]) if steps else None
    counters = Counters()
    if source is not None:
        counters = Counters.of(checkpointer.load(source))
        if built.parts.recipe.checkpoint.best and counters.best_step is not None:
            _protect_best(run, built, counters)
    strategy.barrier()
    if strategy.is_main:
        run.remove_unfinished()
        run.cut_back(counters.step, counters.evaluated_step)
        run.remove_checkpoints_after(counters.step)
        run.update(resume_from=None)
    strategy.barrier()
    return counters


def _protect_best(run: RunDir, built: Built, counters: Counters) -> None:
    """Keep the best checkpoint, if it is there: a start from an older checkpoint, or of another run, may be without."""
    step = counters.best_step
    if step is not None and (step > counters.step or not run.checkpoint(step).exists()):
        if built.parts.strategy.is_main:
            log.warn(f"the checkpoint of step {step}, the best so far, is gone: the best is looked for from here on")
        counters.best_step = counters.best_loss = None
    built.parts.checkpointer.protected = counters.best_step


def _write_facts(run: RunDir, built: Built) -> None:
    run.update(
        global_batch=built.resolved["global_batch"],
        resolved=built.resolved,
        versions={
            "ascendtune": __version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("torch", "transformers", "peft", "tokenizers")},
            **built.parts.strategy.device.versions(),
        },
    )


def _callbacks(run: RunDir, recipe: Recipe) -> list[Callback]:
    callbacks: list[Callback] = [MetricsWriter(run), ProgressDisplay(run)]
    if recipe.track.tensorboard:
        from ascendtune.train.report.tensorboard import TensorBoardWriter

        callbacks.append(TensorBoardWriter(run))
    return callbacks


def _finish(run: RunDir, built: Built, counters: Counters, reason: str) -> None:
    parts = built.parts
    run.require_present()
    best = counters.best_step if parts.recipe.checkpoint.best else None
    if best is not None and best != counters.step:
        parts.checkpointer.load(run.checkpoint(best))
        reason += f"; the weights are those of step {best}, the best evaluation"
    new_tokens = bool(parts.recipe.model.new_tokens)
    parts.strategy.gather_full(built.tuned, exported_parameters(built.tuned, new_tokens), built.export_dtype)
    if parts.strategy.is_main:
        export_model(built.tuned, built.tokenizer, run.model, built.chat_template, new_tokens=new_tokens)
        run.update(ended_because=reason)
        run.end_attempt("finished")
    parts.strategy.barrier()


def _translated(error: BaseException) -> AscendtuneError | None:
    """Foreign errors that have a remedy, in our words."""
    if isinstance(error, AscendtuneError):
        return error
    if isinstance(error, torch.OutOfMemoryError) or "not enough memory" in str(error):
        return MachineError(
            f"out of device memory: {str(error).strip().splitlines()[0]}",
            code=OUT_OF_MEMORY,
            remedy="set memory.gradient_checkpointing: true, lower batch.per_device (and raise batch.accumulate) or "
            "data.max_length, or use method.tuner: lora",
        )
    # torch_npu has no class for it; torch 2.8 gave CUDA one.
    if "acl api failed" in str(error) or isinstance(error, getattr(torch, "AcceleratorError", ())):
        return MachineError(
            f"the device failed: {str(error).strip().splitlines()[0]}",
            remedy="look at the device with `ascendtune doctor`; the same command goes on from the last checkpoint",
        )
    if isinstance(error, NotImplementedError) and (missing := _MISSING_OPERATOR.match(str(error))):
        return MachineError(
            f"the device cannot compute {missing['name']}: torch has no such operator for {missing['backend']}",
            remedy="set model.attention: eager, and each kernel key to false; or update torch and torch_npu",
        )
    return disk_fault(error, getattr(error, "filename", None) or ".", "training")


# torch's words in c10/core/impl and the dispatcher (2.13).
_MISSING_OPERATOR = re.compile(r"Could not run '(?P<name>[^']+)' with arguments from the '(?P<backend>[^']+)' backend")


def _note_end(run: RunDir, error: BaseException, rank: int) -> None:
    """Put the cause into run.json: the first rank that knows one writes it, later ones only echo it."""
    if isinstance(error, KeyboardInterrupt):
        error = Stopped(
            "stopped at once, without a checkpoint of the last step",
            remedy="give the same command again: it goes on from the newest checkpoint",
            signal_number=signal.SIGINT,
        )
    try:
        with file_lock(run.path / ".cause.lock", wait=True):
            if run.read()["state"] in ("created", "running"):
                state: State = "stopped" if isinstance(error, Stopped) else "failed"
                run.end_attempt(state, exit_cause_of_worker(error, rank))
    except (OSError, AscendtuneError) as second:
        # The disk that broke the run may be the one that this goes to.
        log.warn(f"run.json could not be updated: {second}")


# What a rank sees when another one has gone: never the first cause.
_ECHOES = ("connection closed by peer", "connection reset", "gloo", "nccl", "hccl", "broken pipe")


def _is_echo(error: BaseException) -> bool:
    """Whether this rank only lost another one; also when that shows while a checkpoint is written."""
    if not started_by_torchrun():
        return False
    cause: BaseException | None = error
    while cause is not None:
        # DCP reports a lost rank by an exception of its own.
        lost = isinstance(cause, RuntimeError) or type(cause).__name__ == "CheckpointException"
        if lost and any(word in str(cause).lower() for word in _ECHOES):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
