"""`ascendtune align record`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def record(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="The command that trains, such as python train.py.", show_default=False),
    ],
    steps: Annotated[str, typer.Option(metavar="STEPS", help="Steps that are dumped.")] = "1-3",
    directory: Annotated[Path, typer.Option("--to", metavar="DIR", help="Directory to write.")] = Path("recorded"),
    content: Annotated[
        Literal["statistics", "tensors"], typer.Option(help="Dump statistics, or the whole tensors beside them.")
    ] = "statistics",
) -> None:
    """Run a training script that knows nothing of ascendtune, and record what `ascendtune align` compares.

    \b
    ascendtune align record -- python train.py --epochs 1
    ascendtune align record --to gpu -- torchrun --nproc-per-node 2 train.py
    ascendtune align record --to gpu -- deepspeed train.py --deepspeed zero2.json
    ascendtune align gpu runs/npu

    Works for loops of torch on one device, with DDP, FSDP2 or DeepSpeed ZeRO, and for the Trainer of transformers, in
    the Python that has ascendtune installed. A step is one optimizer step of the first model that is trained. Models
    that torch.compile has compiled run eagerly. Processes that the command starts are followed: launchers, subprocess,
    multiprocessing; not commands of a shell. Not recorded: FSDP1. Exit code: that of the command.
    """
    import os

    from ascendtune.core import log
    from ascendtune.core.errors import InputError
    from ascendtune.core.process import replace
    from ascendtune.job.command import program
    from ascendtune.train.dump.command import recorded_command
    from ascendtune.train.dump.request import VARIABLE, RecordRequest

    log.set_up()
    argv = recorded_command(command)
    if argv is None:
        raise InputError(
            "the command starts no Python program",
            code="not-a-program",
            remedy="give it as: ascendtune align record -- python train.py",
        )
    request = RecordRequest(str(directory.resolve()), steps, content)
    request.prepare()
    replace([program(argv[0]), *argv[1:]], {**os.environ, VARIABLE: request.to_json()})
