"""`ascendtune align record`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

_LAUNCHERS = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})
"""Modules that start the program that is named after their options, and take `-m` before it."""


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
    ascendtune align gpu runs/npu

    Works for loops of torch on one device, with DDP or FSDP2, and for the Trainer of transformers, in the Python that
    has ascendtune installed. A step is one optimizer step of the first model that is trained. Models that torch.compile
    has compiled run eagerly. Not recorded: training in processes that the script itself starts, DeepSpeed, FSDP1. Exit
    code: that of the command.
    """
    import os

    from ascendtune.core import log
    from ascendtune.core.errors import InputError
    from ascendtune.core.process import replace
    from ascendtune.job.command import program
    from ascendtune.train.dump.request import PROGRAM, VARIABLE, RecordRequest

    log.set_up()
    names = enumerate(zip(command, [*command[1:], ""], strict=True))
    at = next((at for at, (word, following) in names if _begins_program(word, following)), None)
    if not at:
        raise InputError(
            "the command starts no Python script",
            code="not-a-program",
            remedy="give it as: ascendtune align record -- python train.py",
        )
    request = RecordRequest(str(directory.resolve()), steps, content)
    request.prepare()
    argv = [program(command[0]), *command[1:at], "-m", PROGRAM, *command[at:]]
    replace(argv, {**os.environ, VARIABLE: request.to_json()})


def _begins_program(word: str, following: str) -> bool:
    """Whether the Python program that trains begins with `word`: its file, or `-m` and its module."""
    return word.endswith(".py") or (word == "-m" and following not in _LAUNCHERS)
