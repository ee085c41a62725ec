"""`ascendtune launch`"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ascendtune.job.outcome import Outcome
    from ascendtune.job.spec import JobSpec


def launch(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="A program and its arguments.", show_default=False)
    ],
    devices: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many devices (default: all visible; on CPU 1).")
    ] = None,
    device_ids: Annotated[str | None, typer.Option(metavar="0,1", help="Only these devices.")] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the job is called (default: as COMMAND).")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background.")] = False,
) -> None:
    """Start any program once per device, as training is started.

    \b
    ascendtune launch -- python train.py --epochs 3
    ascendtune launch --devices 2 --name smoke --detach -- ./smoke.sh

    Each process finds torchrun's variables (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). What they print is
    shown with the rank in front, and kept. The exit code is that of the first rank that failed.
    """
    from ascendtune.cli.background import stays_with_the_terminal
    from ascendtune.cli.complain import complain, warn
    from ascendtune.cli.device_choice import choose
    from ascendtune.core import log
    from ascendtune.job.backend.local import start
    from ascendtune.job.program import program
    from ascendtune.job.registry import directory_of
    from ascendtune.job.spec import JobSpec, new_id
    from ascendtune.machine.visible import cpu_count, visible_devices

    log.set_up()
    argv = (program(command[0]), *command[1:])
    _require_torch()
    visible = visible_devices()
    chosen = choose(visible, count=devices, ids=device_ids, cores=cpu_count())
    for message in (visible.note, chosen.warning):
        if message:
            warn(message)
    job_id = new_id(name or _name_of(command))
    # Into a file, Python prints in blocks of many lines, and nobody would see them come.
    variables = {} if "PYTHONUNBUFFERED" in os.environ else {"PYTHONUNBUFFERED": "1"}
    directory = directory_of(job_id)
    spec = JobSpec(argv, directory, chosen.count, chosen.kind, chosen.ids, variables, is_foreign=True, id=job_id)
    if detach:
        if stays_with_the_terminal(spec):
            return
        result = start(spec)
    else:
        result = _shown(spec)
    if result.error:
        complain(result.error)
    raise typer.Exit(result.exit_code)


def _shown(spec: JobSpec) -> Outcome:
    """Run the job, and print what its ranks say."""
    import threading

    from ascendtune.cli.job_lines import show_while_read
    from ascendtune.job.backend.local import start
    from ascendtune.job.follow import follow

    over = threading.Event()
    printer = threading.Thread(target=show_while_read, args=(follow(spec.logs, over.is_set, began={}),))
    printer.start()
    try:
        return start(spec)
    finally:
        over.set()
        printer.join()


def _name_of(command: list[str]) -> str:
    """`python train.py` is called train, `./smoke.sh` smoke."""
    scripts = [word for word in command if word.endswith((".py", ".sh"))]
    return Path((scripts or command)[0]).stem


def _require_torch() -> None:
    from importlib.util import find_spec

    from ascendtune.core.errors import MachineError

    if find_spec("torch") is None:
        raise MachineError(
            f"torchrun, which starts the processes, is not installed for {sys.executable}",
            remedy="install the extra `train`: pip install 'ascendtune[train]', or '.[train]' in a clone",
        )
