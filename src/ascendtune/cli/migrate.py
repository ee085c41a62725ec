"""`ascendtune migrate check` and `ascendtune migrate run`"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.messages import print_error
from ascendtune.cli.terminal import print_findings
from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.suggest import path_suggestion

if TYPE_CHECKING:
    from ascendtune.check.finding import Finding


_SHOWN = 8
"""Printed places per finding; JSON has all of them."""


def check(
    path: Annotated[Path, typer.Argument(help="A file, or a directory of Python, C++, scripts.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, with every place.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Print every place.")] = False,
) -> int:
    """List CUDA code that does not run unchanged on Ascend, and its replacements. Does not need torch.

    \b
    ascendtune migrate check .
    ascendtune migrate check train.py --json

    Python is parsed, other files are read line by line. Calls that `ascendtune migrate run` replaces are counted; --all
    and JSON also list their places. Exit code 1: code that does not run on Ascend was found; 0: none, perhaps warnings;
    4: no source files.
    """
    from ascendtune.check.finding import exit_code
    from ascendtune.check.migrate.scan import scan
    from ascendtune.core.progress_bar import ProgressBar

    with ProgressBar(sys.stderr) as progress:
        result = scan(path, progress.show)
    shown = result.findings if everything or as_json else [_shortened(each) for each in result.findings]
    print_findings(result.verdict, shown, as_json=as_json, everything=everything, files=result.files)
    return exit_code(result.findings)


def _shortened(finding: Finding) -> Finding:
    more = len(finding.evidence) - _SHOWN
    if more <= 1:
        return finding
    return replace(finding, evidence=(*finding.evidence[:_SHOWN], f"… and {more} more; --all prints them"))


def run(
    script: Annotated[Path, typer.Argument(help="A Python script written for CUDA.", show_default=False)],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGUMENT", help="Arguments of the script.")] = None,
    devices: Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of NPUs, one process each.")] = None,
    device_ids: Annotated[str | None, typer.Option(metavar="0,1", help="Only these NPUs.")] = None,
    logs: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the logs of ranks other than 0.")] = Path(
        "migrate"
    ),
) -> None:
    """Run an unmodified CUDA script on Ascend NPUs: torch_npu replaces its CUDA calls by NPU calls (transfer_to_npu).

    \b
    ascendtune migrate run train.py --epochs 3
    ascendtune migrate run --devices 8 train.py --epochs 3

    Options of this command come before the script. The default is one device; several are started by torchrun.
    `ascendtune migrate check` lists code that cannot be replaced this way.
    """
    from ascendtune.cli.device_choice import choose
    from ascendtune.core import log
    from ascendtune.job.backend.local import start
    from ascendtune.job.spec import JobSpec
    from ascendtune.machine.visible import cpu_count, visible_devices

    log.set_up()
    _require_script(script)
    visible = visible_devices()
    # For the script and its child processes.
    variables = visible.vendor.cuda_environment(os.environ)
    if not variables:
        raise MachineError(
            "no NPU is usable on this machine",
            code="no-usable-npu",
            remedy=visible.note or "run `ascendtune doctor` for the reason",
        )
    count = 1 if devices is None and device_ids is None else devices
    chosen = choose(visible, count=count, ids=device_ids, cores=cpu_count())
    argv = (sys.executable, str(script), *(arguments or []))
    # The ranks connect through MASTER_ADDR and MASTER_PORT, as in any program.
    result = start(JobSpec(argv, logs, chosen.count, chosen.kind, chosen.ids, variables, meets_by_address=True))
    if result.error:
        print_error(result.error)
    raise typer.Exit(result.exit_code)


def _require_script(script: Path) -> None:
    if script.is_dir():
        inside = next(iter(sorted(script.glob("*.py"))), None)
        raise InputError(
            "the script is a directory",
            code="not-a-file",
            remedy="give a Python file" + (f", such as {inside}" if inside else ""),
            where=script,
        )
    if not script.is_file():
        raise InputError(
            "no such script",
            code="path-missing",
            remedy=path_suggestion(script, "give the path of a Python file"),
            where=script,
        )
