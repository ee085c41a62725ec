"""`ascendtune migrate check` and `ascendtune migrate run`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ascendtune.check.finding import Finding


_SHOWN = 8
"""Places of a finding that are printed; JSON has them all."""


def check(
    path: Annotated[Path, typer.Argument(help="A file, or a directory of Python, C++, scripts.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every place.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Print every place.")] = False,
) -> int:
    """List what in a code base will not move from CUDA to Ascend, and what takes its place. Needs no torch.

    \b
    ascendtune migrate check .
    ascendtune migrate check train.py --json

    Python is read as a syntax tree, other files line by line. What moves by itself under `ascendtune migrate run` is
    counted; --all and JSON name its places too. Exit code 1: something will not move; 0: nothing, though there may be
    things to look at; 4: there is no code.
    """
    import sys

    from ascendtune.check.finding import exit_code
    from ascendtune.check.migrate.scan import scan
    from ascendtune.check.table import as_json as findings_as_json
    from ascendtune.check.table import as_text
    from ascendtune.cli.progress import Progress
    from ascendtune.cli.terminal import paint, width

    with Progress(sys.stderr) as progress:
        found = scan(path, progress.show)
    if as_json:
        print(findings_as_json(found.verdict, found.findings, files=found.files))
    else:
        shown = found.findings if everything else [_shortened(each) for each in found.findings]
        print(as_text(found.verdict, shown, columns=width(sys.stdout), paint=paint, everything=everything))
    return exit_code(found.findings)


def _shortened(finding: Finding) -> Finding:
    from dataclasses import replace

    more = len(finding.evidence) - _SHOWN
    if more <= 1:
        return finding
    return replace(finding, evidence=(*finding.evidence[:_SHOWN], f"… and {more} more; --all prints them"))


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
    from ascendtune.core.nearest import nearest_path
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
        near = nearest_path(script)
        raise InputError(
            "there is no such script",
            remedy=f"did you mean '{near}'?" if near else "give the path of a Python file",
            where=script,
        )
    visible = visible_devices()
    if visible.kind != "npu":
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
