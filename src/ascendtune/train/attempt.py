"""One attempt at a run, in one of its processes: trains from a run directory and records how the attempt ended."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ascendtune.core import log
from ascendtune.core.checkpoint_names import has_finished
from ascendtune.core.errors import AscendtuneError, DataError, InputError, MachineError, RecipeError, Stopped
from ascendtune.core.locks import file_lock
from ascendtune.core.progress_bar import slow_work_bar
from ascendtune.core.rundir import RunDir
from ascendtune.data.prepare import PreparedData, cached_tokens, open_prepared
from ascendtune.machine.torch_backend.device import Device
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.attempt_end import note_end
from ascendtune.train.export import export_model, exported_parameters
from ascendtune.train.loop import Loop
from ascendtune.train.patient_barrier import PatientBarrier
from ascendtune.train.phases import Phases
from ascendtune.train.plan.finished_run import add_run, note_peak
from ascendtune.train.plan.out_of_memory import describe_memory
from ascendtune.train.prepare import prepare_data
from ascendtune.train.recorded_config import require_recorded_configs
from ascendtune.train.report.callback import Callback, RunFacts
from ascendtune.train.report.picture import draw
from ascendtune.train.report.progress import show_summary
from ascendtune.train.report.summary import summary_lines
from ascendtune.train.setup import set_up
from ascendtune.train.stored_adapters import recorded_adapters, require_recorded_adapters
from ascendtune.train.strategy.choose import make_strategy
from ascendtune.train.torch_errors import TIMED_OUT, is_lost_connection, lost_connection, translated

_NO_ROOM = ("disk-full", "disk-quota-exceeded", "disk-space-missing", "file-too-large")


def train(run: RunDir, record: dict[str, Any], callbacks: Sequence[Callback] = ()) -> None:
    """Train in `run` until the run is finished, stopped or failed; run.json records which.

    Args:
        record: run.json, as it was when this process claimed the run.
        callbacks: called on the main rank, after the callbacks that every run has.

    Raises:
        AscendtuneError: with the exit code for this process.
    """
    if has_finished(record):
        log.say(f"{run} has finished; nothing to do")
        return
    recipe = Recipe.load(run.recipe)
    rank = int(os.environ.get("RANK", "0"))
    with ExitStack() as stack:
        if rank == 0 and not stack.enter_context(file_lock(run.lock, wait=False)):
            raise MachineError(
                "this run is being trained by another process",
                code="run-in-use",
                remedy="wait for it, or use another name",
                where=run.path,
            )
        try:
            _train(run, record, recipe, rank, stack, callbacks)
        except BaseException as error:
            if is_lost_connection(error):
                # Not a failure of the training: an engine that restarts failed jobs restarts the job after this exit
                # code.
                lost = lost_connection(error, run)
                if lost.code == TIMED_OUT:
                    # The rank that hangs records nothing, so this rank records the time-out.
                    note_end(run, record, lost, rank)
                raise lost from error
            if not isinstance(error, KeyboardInterrupt):
                run.require_present()
            translated_error = translated(error)
            if translated_error is not None and translated_error.code in _NO_ROOM and (steps := run.checkpoint_steps()):
                translated_error.remedy += f"; the same command then resumes from step {steps[-1]}"
            note_end(run, record, translated_error or error, rank)
            if translated_error is None or translated_error is error:
                raise
            raise translated_error from error


def _train(
    run: RunDir,
    record: dict[str, Any],
    recipe: Recipe,
    rank: int,
    stack: ExitStack,
    callbacks: Sequence[Callback],
) -> None:
    attempt = len(record["attempts"]) + 1
    phases = Phases(run.heartbeats / f"rank_{rank}.json", attempt)
    stack.callback(phases.close)
    model_directory = Path(record["model_directory"])
    _require_models(record)
    # Data before collectives: while one rank tokenises, no collective may be waiting.
    barrier = PatientBarrier.of_this_job(phases)
    with barrier.work("prepares its data"):
        prepared = _open_data(recipe, record["data_hash"], model_directory, phases, barrier.show)
    phases.enter("rendezvous")
    device: Device = find_device(int(os.environ.get("LOCAL_RANK", "0")))
    _set_deterministic(recipe, device, stack)
    device.activate()
    _set_torch_defaults(device, stack)
    strategy = make_strategy(recipe, device, model_directory)
    stack.push(lambda kind, error, trace: strategy.close(together=error is None or isinstance(error, Stopped)))
    strategy.uneven_work, strategy.uneven_writing = barrier.work, barrier.for_thread("checkpoint").work
    host = socket.gethostname()
    hosts = list(dict.fromkeys(strategy.gather(host)))
    if strategy.is_main:
        run.begin_attempt(
            {
                "host": host,
                "hosts": hosts,
                "world_size": strategy.world_size,
                "device": device.name,
                "fp32_products": device.product_types(),
            },
        )
    # A failure from here on ends this attempt instead of beginning another.
    strategy.barrier()
    phases.enter("loading")
    with slow_work_bar() as bar, bar.counting("loading the model"):
        loop = set_up(run, record, recipe, strategy, prepared, phases, stack)
    if strategy.is_main:
        loop.recorder.callbacks.extend(callbacks)
    facts = RunFacts(recipe.name, loop.last_step()[0], loop.counters.step, attempt)
    try:
        for callback in loop.recorder.callbacks:
            callback.on_start(facts)
        with _failure_noted(loop):
            reason = loop.run()
        if strategy.is_main:
            note_peak(run, record.get("plan"), strategy.device)
            # Profiled steps are slower than others.
            if not recipe.profile.only:
                add_run(loop)
        loop.checkpointer.wait()
        # The export is completed: after a signal it would only have to be repeated.
        loop.stop.saved = "the exported model"
        with phases.phase("export"):
            _finish(loop, prepared.chat_template, reason)
    finally:
        if strategy.is_main:
            _close_callbacks(run, loop.recorder.callbacks)
    if strategy.is_main:
        show_summary(summary_lines(run))


@contextmanager
def _failure_noted(loop: Loop) -> Iterator[None]:
    """Let the loop know that it has failed, and add the use of memory to an error of memory."""
    try:
        yield
    except Exception as error:
        loop.stop.has_failed = True
        if isinstance(error, torch.OutOfMemoryError):
            # run.json may be unreadable by now; an error while reading it must not replace this error.
            with suppress(OSError, AscendtuneError):
                error.add_note(describe_memory(loop))
        raise


def _close_callbacks(run: RunDir, callbacks: list[Callback]) -> None:
    """Close the callbacks and draw the picture of the run. Errors are logged: they must not replace the run's own."""
    closing: list[Callable[[], object]] = [callback.on_end for callback in callbacks]
    if not isinstance(sys.exception(), KeyboardInterrupt):
        closing.append(partial(_draw, run))
    for action in closing:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # callbacks of `fit` may raise anything
            log.warn(str(error) if isinstance(error, AscendtuneError) else f"{type(error).__name__}: {error}")


def _draw(run: RunDir) -> None:
    with slow_work_bar() as bar, bar.counting("drawing the loss"):
        draw(run)


def _set_deterministic(recipe: Recipe, device: Device, stack: ExitStack) -> None:
    if recipe.deterministic:
        for name, value in device.deterministic_variables.items():
            os.environ.setdefault(name, value)
        stack.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
        torch.use_deterministic_algorithms(True)


def _set_torch_defaults(device: Device, stack: ExitStack) -> None:
    """Set torch's defaults as in a new process: the program that calls `fit` may have changed them.

    The program's random number generators are not affected by the training.

    Raises:
        InputError: the call is inside torch.autocast, which would keep the casts of the weights from step to step.
    """
    if torch.is_autocast_enabled(device.torch_device.type):
        raise InputError(
            "the training was called inside torch.autocast",
            code="called-in-autocast",
            remedy="call it outside; the recipe's precision says what is computed in which type",
        )
    stack.callback(torch.set_rng_state, torch.get_rng_state())
    if (device_state := device.random_state()) is not None:
        stack.callback(device.set_random_state, device_state)
    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(torch.float32)
    stack.enter_context(torch.inference_mode(mode=False))
    stack.enter_context(torch.enable_grad())
    if torch.get_default_device().type != "cpu":
        stack.enter_context(torch.device("cpu"))


def _require_models(record: dict[str, Any]) -> None:
    """Raise if this host lacks a model of the run, or has another config or adapter."""
    adapters = [each.path for each in recorded_adapters(record)]
    for path in (record["model_directory"], record.get("reference_directory"), *adapters):
        if path is not None and not Path(path).is_dir():
            raise RecipeError(
                f"{socket.gethostname()} does not have this model of the run",
                code="model-missing-on-host",
                remedy="copy it to the same path on every host, or put it on a file system that all share",
                where=path,
            )
    require_recorded_configs(record)
    require_recorded_adapters(record)


def _open_data(
    recipe: Recipe, data_hash: str, model_directory: Path, phases: Phases, show: Callable[[str, int, int], None]
) -> PreparedData:
    """Open the tokens that the run was started with; tokenise the data if they are not in the cache.

    Args:
        show: called with the progress of tokenising.

    Raises:
        DataError: tokenising on this host gives other tokens.
    """
    entry = cached_tokens(data_hash)
    try:
        return open_prepared(entry)
    except MachineError:
        # This is another node, or the cache was emptied: by the lock in the cache, one rank tokenises and the others
        # wait.

        def progress(what: str, done: int, total: int) -> None:
            phases.write_heartbeat()
            show(what, done, total)

        prepared = prepare_data(recipe, model_directory, progress)
    if prepared.fingerprint != data_hash:
        # Ranks would train on different rows, and divide their losses by different counts.
        raise DataError(
            f"the data on this host is not what the run was started with (hashes: {prepared.fingerprint[:12]} here, "
            f"{data_hash[:12]} in run.json): its files, template or tokenizer are others, or ascendtune, tokenizers or "
            "jinja2 have other versions",
            code="data-differs-between-nodes",
            remedy="give every node the same files, the same model and the same packages; on one node run the same "
            "command again",
        )
    return prepared


def _finish(loop: Loop, chat_template: str, reason: str) -> None:
    """Export the model (not with `profile.only`) and record the end of the attempt."""
    run, strategy, counters = loop.run_directory, loop.strategy, loop.counters
    run.require_present()
    if loop.recipe.profile.only:
        if strategy.is_main:
            run.end_attempt("finished", ended_because=reason, resume_from=None)
        strategy.barrier()
        return
    best = counters.best_step if loop.recipe.checkpoint.best else None
    if best is not None and best != counters.step:
        loop.checkpointer.load(run.checkpoint(best))
        reason += f"; the weights are those of step {best}, the best evaluation"
    new_tokens = bool(loop.recipe.model.new_tokens)
    strategy.gather_full(loop.model, exported_parameters(loop.model, new_tokens), loop.export_dtype, run.path)
    strategy.on_main(lambda: export_model(loop.model, loop.tokenizer, run.model, chat_template, new_tokens=new_tokens))
    if strategy.is_main:
        exported_step = counters.step if best is None else best
        run.end_attempt("finished", ended_because=reason, exported_step=exported_step, resume_from=None)
    strategy.barrier()
