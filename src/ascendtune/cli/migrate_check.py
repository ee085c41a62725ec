"""`ascendtune migrate check`"""

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
