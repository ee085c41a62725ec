"""`ascendtune train`: resolves the recipe, prepares the data, makes the run directory, and starts the worker."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from ascendtune.cli.complain import complain, warn
from ascendtune.cli.terminal import width


def train(
    recipe: Annotated[Path, typer.Argument(help="The recipe, ours or LLaMA-Factory's.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Keys to change, e.g. optim.learning_rate=1e-4."),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many devices (default: all visible; on CPU 1).")
    ] = None,
    device_ids: Annotated[str | None, typer.Option(metavar="0,1", help="Only these devices.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Train in the background, once the data is ready.")] = False,
    prepare: Annotated[bool, typer.Option("--prepare", help="Only prepare the data, then stop.")] = False,
    allow_change: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Resume although this recipe key (or `data`) changed; repeatable."),
    ] = None,
    trust_checkpoint: Annotated[
        bool, typer.Option("--trust-checkpoint", help="Load a checkpoint of another run; its metadata is a pickle.")
    ] = False,
) -> None:
    """Train the model that a recipe describes.

    \b
    ascendtune train recipe.yaml
    ascendtune train recipe.yaml optim.epochs=2 --devices 2
    ascendtune train recipe.yaml --prepare

    Runs until the end, or until Ctrl-C: then it writes a checkpoint and stops; Ctrl-C again stops at once. The same
    command resumes. The result is in the run directory: the model, the metrics and a picture of the loss.
    """
    from ascendtune.cli.background import stays_with_the_terminal
    from ascendtune.cli.device_choice import choose
    from ascendtune.cli.progress import Progress
    from ascendtune.core import log
    from ascendtune.data.report import lines
    from ascendtune.job.backend.local import start
    from ascendtune.job.spec import JobSpec
    from ascendtune.machine.visible import cpu_count, visible_devices
    from ascendtune.train.prepare import prepare_run
    from ascendtune.train.recipe import Recipe

    log.set_up(debug=bool(os.environ.get("ASCENDTUNE_DEBUG")))
    loaded, origins = Recipe.load_with_origins(recipe, overrides or [])
    visible = visible_devices()
    chosen = choose(visible, count=devices, ids=device_ids, cores=cpu_count())
    for message in (*loaded.notes, *loaded.without_effect(origins), visible.note, chosen.warning):
        if message:
            warn(message)
    with Progress(sys.stderr) as progress:
        ready = prepare_run(
            loaded,
            origins,
            allow_change=allow_change or [],
            trust_checkpoint=trust_checkpoint,
            only_data=prepare,
            progress=progress.show,
        )
    for message in ready.prepared.warnings:
        warn(message)
    for line in (*lines(ready.prepared.report, width(sys.stderr) or 100), *ready.messages):
        print(line, file=sys.stderr)
    if ready.run is None:
        print(f"the tokens are in {ready.prepared.directory}")
        return
    argv = (sys.executable, "-m", "ascendtune.train.worker", str(ready.run))
    spec = JobSpec(argv, ready.run.path, nproc=chosen.count, kind=chosen.kind, device_ids=chosen.ids)
    if detach and stays_with_the_terminal(spec):
        return
    # What is still buffered would be lost when this process becomes the worker.
    sys.stdout.flush()
    sys.stderr.flush()
    if chosen.count == 1:
        # This process becomes the worker. Ctrl-C in between waits until the worker can answer it in its own words.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    result = start(spec)
    if result.error:
        complain(result.error)
    if chosen.count > 1 and 0 < result.exit_code < 128:
        print(f"`ascendtune explain {ready.run.path}` says more", file=sys.stderr)
    raise typer.Exit(result.exit_code)
