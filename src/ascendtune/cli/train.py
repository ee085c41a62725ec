"""`ascendtune train`: resolve the recipe, prepare the data, create the run directory, start the worker."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.messages import notice, notice_ignored, print_error, warn
from ascendtune.cli.options import (
    Detach,
    DeviceCount,
    DeviceIds,
    DryRun,
    Hosts,
    MaxRestarts,
    MinNodes,
    Overrides,
    Quiet,
    RecipeFile,
    Verbose,
)
from ascendtune.cli.run_names import complete_changed_key
from ascendtune.cli.terminal import PLAIN_COLUMNS, width
from ascendtune.core.errors import InputError
from ascendtune.core.imports import uncollected_imports
from ascendtune.core.terminal_text import wrapped

if TYPE_CHECKING:
    from ascendtune.cli.device_choice import Devices
    from ascendtune.cli.node_choice import ChosenNodes
    from ascendtune.job.spec import JobSpec, OnHang
    from ascendtune.recipe.changes import ResumeOptions
    from ascendtune.recipe.recipe import Recipe
    from ascendtune.train.prepare import PreparedRun


def train(
    recipe: RecipeFile,
    overrides: Overrides = None,
    devices: DeviceCount = None,
    device_ids: DeviceIds = None,
    nodes: Hosts = None,
    min_nodes: MinNodes = None,
    max_restarts: MaxRestarts = 0,
    dry_run: DryRun = False,
    detach: Detach = False,
    dump_steps: Annotated[
        str | None,
        typer.Option(metavar="STEPS", help="Dump these steps for `ascendtune align`, e.g. 1-3,10: align.dump_steps."),
    ] = None,
    prepare: Annotated[bool, typer.Option("--prepare", help="Only prepare the data, then exit.")] = False,
    allow_change: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Resume even if this recipe key (or `data`) changed; repeatable.",
            autocompletion=complete_changed_key,
        ),
    ] = None,
    trust_checkpoint: Annotated[
        bool, typer.Option("--trust-checkpoint", help="Load a checkpoint that another user has written, or may write.")
    ] = False,
    no_plan: Annotated[
        bool, typer.Option("--no-plan", help="Start a large model without estimating its memory first.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train the model that a recipe describes.

    \b
    ascendtune train recipe.yaml
    ascendtune train recipe.yaml optim.epochs=2 --devices 2
    ascendtune train recipe.yaml --nodes node1,node2
    ascendtune train recipe.yaml --prepare

    Ctrl-C writes a checkpoint and stops; a second Ctrl-C stops at once. The same command resumes. The run directory
    contains the model, the metrics and a plot of the loss.
    """
    from ascendtune.train.stack_dump import block_stacks_signal

    # Before any thread is started: the worker, whose threads must block the signal, may run in this process.
    block_stacks_signal()
    with uncollected_imports():
        from ascendtune.cli.job_start import fork_into_background
        from ascendtune.cli.node_choice import choose_nodes, require_one_starter
        from ascendtune.core import log
        from ascendtune.core.ownership import restrict_umask
        from ascendtune.core.progress_bar import ProgressBar
        from ascendtune.job.registry import require_writable_registry
        from ascendtune.recipe.changes import ResumeOptions
        from ascendtune.recipe.recipe import Recipe
        from ascendtune.train.prepare import prepare_run

    log.set_up(quiet=quiet, verbose=verbose)
    restrict_umask()
    require_one_starter(os.environ)
    loaded, origins = Recipe.load_with_origins(recipe, [*(overrides or []), *_overrides_of(dump_steps)])
    resume_options = ResumeOptions(allow_change or (), trust_checkpoint)
    chosen_nodes = choose_nodes(
        nodes, min_nodes=min_nodes, max_restarts=max_restarts, devices=devices, device_ids=device_ids, env=os.environ
    )
    chosen, notes = chosen_nodes.devices(devices, device_ids)
    _warn_before(loaded, notes, max_restarts)
    notice_ignored(loaded.all_without_effect(origins), recipe)
    if loaded.batch.per_device == "auto" and chosen_nodes.is_one_machine and not prepare:
        from ascendtune.train.plan.memory_check import with_batch_size

        loaded = with_batch_size(loaded, resume_options, devices=chosen.count)
        notice(f"batch.per_device: auto is {loaded.batch.micro_batch}")
    job_spec = partial(_job_spec, devices=chosen, max_restarts=max_restarts, on_hang=loaded.on_hang)
    if dry_run:
        _show_dry_run(loaded, resume_options, chosen_nodes, job_spec)
        return
    if not prepare:
        require_writable_registry()
        chosen_nodes.query_resources()
    runs = loaded.run_directory().parent
    with ProgressBar(sys.stderr) as progress, chosen_nodes.preparing(runs, progress.show) as show:
        ready = prepare_run(
            loaded,
            origins,
            resume_options=resume_options,
            only_data=prepare or chosen_nodes.joins_run,
            progress=show,
        )
    for message in ready.prepared.warnings:
        warn(message)
    if not quiet:
        _show_prepared(ready, loaded, recipe, verbose=verbose)
    if prepare:
        print(f"tokens: {ready.prepared.directory}")
        return
    with ready.claim or nullcontext():
        if chosen_nodes.is_one_machine and not no_plan:
            _require_fit(ready, loaded, chosen.count)
        run = chosen_nodes.agree_on(ready.run, runs, ready.prepared.fingerprint)
        # The worker rejects a run directory that another start has claimed since.
        start_id = ready.claim.start_id if ready.claim else run.read().get("start_id")
        # Tokenising leaves threads and memory behind.
        spec = job_spec(run.path, start_id, shares_interpreter=ready.prepared.cached and not detach)
        if detach and fork_into_background(spec):
            return
        if ready.claim:
            # With --detach this is a forked process.
            ready.claim.hold()
            ready.claim.hand_over()
        # Buffered output would be lost when this process becomes the worker.
        sys.stdout.flush()
        sys.stderr.flush()
        result = chosen_nodes.start(spec)
    if result.error:
        print_error(result.error)
    if 0 < result.exit_code < 128:
        print(f"for details run `ascendtune explain {shlex.quote(str(run))}`", file=sys.stderr)
    raise typer.Exit(result.exit_code)


def _job_spec(
    run: Path,
    start_id: str | None,
    *,
    devices: Devices,
    max_restarts: int,
    on_hang: OnHang,
    shares_interpreter: bool = False,
) -> JobSpec:
    """The job that trains in the directory `run`."""
    from ascendtune.job.spec import JobSpec

    argv = (sys.executable, "-P", "-m", "ascendtune.train.worker", str(run), *((start_id,) if start_id else ()))
    return JobSpec(
        argv,
        run,
        devices.count,
        devices.kind,
        devices.ids,
        max_restarts=max_restarts,
        on_hang=on_hang,
        holds_interrupts=True,
        shares_interpreter=shares_interpreter,
    )


def _require_fit(ready: PreparedRun, recipe: Recipe, devices: int) -> None:
    """Record the estimate of a large model in its run.

    Raises:
        MachineError: the run does not fit.
    """
    # Imported here: an error in the recipe need not wait for it.
    from ascendtune.train.plan.memory_check import require_fit

    if ready.run is not None:
        batch = ready.run.read().get("global_batch")
        plan = require_fit(recipe, ready.model_directory, ready.prepared, devices=devices, global_batch=batch)
        ready.run.update(plan=plan)


def _overrides_of(dump_steps: str | None) -> list[str]:
    """The overrides that --dump-steps stands for."""
    if dump_steps is None:
        return []
    if not dump_steps.strip():
        raise InputError(
            "--dump-steps names no steps", code="invalid-option-value", remedy="give steps and ranges, such as 1-3,10"
        )
    return [f"align.dump_steps={dump_steps}"]


def _warn_before(recipe: Recipe, notes: Iterable[str], max_restarts: int) -> None:
    """Warn of differences in a translated recipe, of the chosen devices (`notes`), and of keys that need an option."""
    for message in (*recipe.differences(), *notes):
        warn(message)
    if recipe.on_hang == "restart" and not max_restarts:
        warn("on_hang: restart stops a run that hangs; add --max-restarts N to restart it")


def _show_dry_run(
    recipe: Recipe,
    resume_options: ResumeOptions,
    nodes: ChosenNodes,
    job_spec: Callable[[Path, str | None], JobSpec],
) -> None:
    """Print the command that would start the job."""
    from ascendtune.cli.job_start import show_command
    from ascendtune.train.run_choice import planned_run

    planned = planned_run(recipe, resume_options)
    for message in planned.messages:
        print(f"# {message}")
    if not planned.run.run_json.is_file():
        print(f"# {planned.run} does not exist yet: `ascendtune train` prepares it and the data before it runs this")
    show_command(job_spec(planned.run.path, None), nodes)


def _show_prepared(ready: PreparedRun, recipe: Recipe, path: Path, *, verbose: bool) -> None:
    """Print the data report, a sample row of the recipe at `path`, and the chosen run directory."""
    from ascendtune.cli.data_show import sample_lines
    from ascendtune.data.report import lines

    columns = width(sys.stderr)
    shown = sample_lines(recipe, path, whole=verbose)
    for line in (*lines(ready.prepared.report, columns or PLAIN_COLUMNS), *shown, *ready.messages):
        print(wrapped(line, columns), file=sys.stderr)
