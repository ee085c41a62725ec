"""`ascendtune launch`"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.messages import print_error, warn
from ascendtune.cli.options import Detach, DeviceCount, DeviceIds, DryRun, Hosts, MaxRestarts, MinNodes
from ascendtune.core.errors import CheckFailed, MachineError

if TYPE_CHECKING:
    from ascendtune.cli.node_choice import ChosenNodes
    from ascendtune.core.errors import AscendtuneError
    from ascendtune.job.result import JobResult
    from ascendtune.job.spec import JobSpec

_MOST_BYTES_EXPLAINED = 256 << 20
"""Size of all logs, in bytes; reading more would take longer than a user waits."""


def launch(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="A program and its arguments.", show_default=False)
    ],
    devices: DeviceCount = None,
    device_ids: DeviceIds = None,
    nodes: Hosts = None,
    min_nodes: MinNodes = None,
    max_restarts: MaxRestarts = 0,
    dry_run: DryRun = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the job (default: from COMMAND).")] = None,
    detach: Detach = False,
) -> None:
    """Start any program once per device, like a training job.

    \b
    ascendtune launch -- python train.py --epochs 3
    ascendtune launch --devices 2 --name smoke --detach -- ./smoke.sh

    Each process has torchrun's variables (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Their output is
    shown with the rank before each line, and saved. The exit code is that of the first rank that failed. Only
    `ascendtune train` detects hangs by itself; for other programs `ascendtune jobs stacks` shows, with py-spy,
    where each rank is.
    """
    from ascendtune.cli.job_start import fork_into_background, show_command
    from ascendtune.cli.node_choice import choose_nodes
    from ascendtune.core import log
    from ascendtune.job.command import program
    from ascendtune.job.registry import directory_of, require_writable_registry
    from ascendtune.job.spec import JobSpec, new_id

    log.set_up()
    argv = (program(command[0]), *command[1:])
    _require_torch()
    chosen_nodes = choose_nodes(
        nodes, min_nodes=min_nodes, max_restarts=max_restarts, devices=devices, device_ids=device_ids, env=os.environ
    )
    chosen, notes = chosen_nodes.devices(devices, device_ids)
    for note in notes:
        warn(note)
    job_id = new_id(name or _name_of(command))
    # Python buffers output to a file in large blocks, which would be shown late.
    variables = {} if "PYTHONUNBUFFERED" in os.environ else {"PYTHONUNBUFFERED": "1"}
    # Hosts share the directory in which a program is started, if any.
    directory = directory_of(job_id) if chosen_nodes.hosts is None else Path.cwd() / ".ascendtune" / job_id
    spec = JobSpec(
        argv, directory, chosen.count, chosen.kind, chosen.ids, variables, max_restarts, is_foreign=True, id=job_id
    )
    if dry_run:
        show_command(spec, chosen_nodes)
        return
    require_writable_registry()
    if detach and fork_into_background(spec):
        return
    # Output from other hosts is shown as it arrives.
    result = chosen_nodes.start(spec) if detach or chosen_nodes.hosts else _shown(spec, chosen_nodes)
    if result.error:
        print_error(_explained(result, spec) or _with_command_to_explain(result.error, spec))
    raise typer.Exit(result.exit_code)


def _explained(result: JobResult, spec: JobSpec) -> AscendtuneError | None:
    """The first cause that `ascendtune explain` finds in the logs; None if it finds no rank and cause.

    torchrun names the rank that it saw end first, which may have waited for the rank that failed.
    """
    from ascendtune.check.explain.explain import explain

    saw_rank = result.failure is not None and result.failure.kind == "exit" and result.failure.rank is not None
    # After a restart the logs also contain the failure of an earlier attempt.
    if not saw_rank or spec.max_restarts or spec.nproc < 2 or _size_of(spec.logs) > _MOST_BYTES_EXPLAINED:
        return None
    explanation = explain([str(spec.logs)])
    first, rank = explanation.verdict.first, explanation.verdict.rank
    # The launcher's own lines contain no more than its observation.
    if first is None or rank is None or first.entry.family == "launcher":
        return None
    remedy = f"{'; '.join(explanation.remedies())}; `ascendtune explain {shlex.quote(str(spec.logs))}` shows more"
    return CheckFailed(f"rank {rank}: {first.meaning}", code="rank-failed", remedy=remedy, where=first.where)


def _with_command_to_explain(error: AscendtuneError, spec: JobSpec) -> AscendtuneError:
    """The error; if a process ended with its own code, which explains nothing, with the command that reads its log.

    In a run the same error is part of that command's output.
    """
    if error.code != "process-exited":
        return error
    remedy = f"{error.remedy}; `ascendtune explain {spec.id}` finds the first cause in all logs"
    return type(error)(error.what, code=error.code, remedy=remedy, where=error.where)


def _size_of(logs: Path) -> int:
    return sum(log.stat().st_size for log in logs.glob("*.log"))


def _shown(spec: JobSpec, chosen_nodes: ChosenNodes) -> JobResult:
    """Run the job, and print the output of its ranks."""
    import threading

    from ascendtune.cli.job_display import show_while_read
    from ascendtune.job.follow import follow

    over = threading.Event()
    lines = follow(spec.logs, over.is_set, began={})
    printer = threading.Thread(target=show_while_read, args=(lines, spec.logs))
    printer.start()
    try:
        return chosen_nodes.start(spec)
    finally:
        over.set()
        printer.join()


def _name_of(command: list[str]) -> str:
    """The default name of a job: train for `python train.py`, smoke for `./smoke.sh`."""
    scripts = [word for word in command if word.endswith((".py", ".sh"))]
    return Path((scripts or command)[0]).stem


def _require_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise MachineError(
            f"torchrun, which starts the processes, is not installed for {sys.executable}",
            code="package-missing",
            remedy="install the extra `train`: pip install 'ascendtune[train]', or '.[train]' in a clone",
        )
