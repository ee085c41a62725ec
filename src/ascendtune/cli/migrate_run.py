"""`ascendtune migrate run`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    script: Annotated[Path, typer.Argument(help="A Python script written for CUDA.", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENT", help="What follows belongs to the script.")
    ] = None,
    devices: Annotated[int | None, typer.Option(metavar="N", min=1, help="How many NPUs, one process each.")] = None,
    device_ids: Annotated[str | None, typer.Option(metavar="0,1", help="Only these NPUs.")] = None,
    logs: Annotated[Path, typer.Option(metavar="DIR", help="Where ranks other than 0 write.")] = Path("migrate"),
) -> None:
    """Run an unmodified CUDA script on Ascend NPUs: torch_npu turns its CUDA calls into NPU calls (transfer_to_npu).

    \b
    ascendtune migrate run train.py --epochs 3
    ascendtune migrate run --devices 8 train.py --epochs 3

    Options of ours stand before the script. Several devices are started by torchrun; without --devices it is one.
    `ascendtune migrate check` tells first what this cannot turn.
    """
    import sys

    from ascendtune.cli.complain import complain
    from ascendtune.cli.device_choice import choose
    from ascendtune.core import log
    from ascendtune.core.errors import InputError, MachineError
    from ascendtune.core.suggest import path_suggestion
    from ascendtune.job.backend.local import start
    from ascendtune.job.spec import JobSpec
    from ascendtune.machine.visible import cpu_count, visible_devices

    log.set_up()
    if script.is_dir():
        inside = next((path for path in sorted(script.glob("*.py"))), None)
        raise InputError(
            "this is a directory, not a script",
            remedy="give a Python file" + (f", such as {inside}" if inside else ""),
            where=script,
        )
    if not script.is_file():
        raise InputError(
            "there is no such script",
            remedy=path_suggestion(script, "give the path of a Python file"),
            where=script,
        )
    visible = visible_devices()
    if not visible.vendor.translates_cuda:
        raise MachineError(
            "no NPU can be used here, so there is nothing to turn CUDA calls into",
            remedy=visible.note or "`ascendtune doctor` says why",
        )
    count = 1 if devices is None and device_ids is None else devices
    chosen = choose(visible, count=count, ids=device_ids, cores=cpu_count())
    argv = (sys.executable, str(script), *(arguments or []))
    # Read by torch_npu when torch loads it, in this process and in whatever it starts.
    variables = {"TORCH_TRANSFER_TO_NPU": "1"}
    # Its ranks meet as those of any program do, by MASTER_ADDR and MASTER_PORT.
    result = start(JobSpec(argv, logs, chosen.count, chosen.kind, chosen.ids, variables, meets_by_address=True))
    if result.error:
        complain(result.error)
    raise typer.Exit(result.exit_code)
