"""`ascendtune align record`"""

from __future__ import annotations

import os
from dataclasses import replace as changed
from pathlib import Path
from typing import Annotated, Literal

import typer

from ascendtune.core.errors import InputError


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
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the recording in DIR: the command resumes its training.")
    ] = False,
) -> None:
    """Run a training script that does not use ascendtune, and record the data for `ascendtune align`.

    \b
    ascendtune align record -- python train.py --epochs 1
    ascendtune align record --to gpu -- torchrun --nproc-per-node 2 train.py
    ascendtune align record --to gpu -- deepspeed train.py --deepspeed zero2.json
    ascendtune align record --to gpu --resume -- python train.py --resume-from out/checkpoint-5
    ascendtune align gpu runs/npu

    Works for loops of torch on one device, with DDP, FSDP2 or DeepSpeed ZeRO, and for the Trainer of transformers, in
    the Python that has ascendtune installed. A step is one optimizer step of the first model that is trained. Models
    that torch.compile has compiled run eagerly. Processes that the command starts are followed: launchers, shell
    scripts, subprocess, multiprocessing. Not recorded: FSDP1. Exit code: that of the command.
    """
    from ascendtune.core import log
    from ascendtune.core.process import replace, run_in_foreground
    from ascendtune.job.command import program
    from ascendtune.train.recording.command import environment_of_recorded, recorded_command, runs_shell
    from ascendtune.train.recording.request import RecordRequest

    log.set_up()
    request = RecordRequest(str(directory.resolve()), steps, content, resumes=resume)
    argv = recorded_command(command)
    if argv is not None:
        argv = [program(argv[0]), *argv[1:]]
        request.prepare()
        replace(argv, environment_of_recorded(os.environ, request))
    if not runs_shell(command):
        raise InputError(
            "the command starts no Python program",
            code="not-a-program",
            remedy="give it as: ascendtune align record -- python train.py",
        )
    argv = [program(command[0]), *command[1:]]
    request.prepare()
    # Each Python program that the command starts is a part of it: none of them warns that it trains nothing.
    code = run_in_foreground(argv, environment_of_recorded(os.environ, changed(request, is_child=True)))
    if not (directory / "metrics.jsonl").exists():
        log.warn(
            "no training was seen in this command: it started no Python program that trains, or one of another Python "
            "environment, or without PYTHONPATH; record the program itself: ascendtune align record -- python train.py"
        )
    raise typer.Exit(code)
