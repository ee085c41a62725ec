"""`ascendtune runs list`"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ascendtune.cli.options import AsJson


def list_runs(
    directory: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List runs, the newest last.

    \b
    ascendtune runs list
    ascendtune runs list /data/runs --json
    """
    from ascendtune.cli.run_summary import RunSummary, find_runs
    from ascendtune.cli.terminal import table
    from ascendtune.core.units import format_count, format_duration

    summaries = [RunSummary.of(run) for run in find_runs(directory)]
    if as_json:
        print(json.dumps([asdict(each) for each in summaries], indent=2))
        return
    if not summaries:
        print(f"no runs in {directory}")
        return
    header = ["name", "state", "step", "loss", "tokens/s", "age"]
    rows = [
        [
            each.name,
            each.state,
            "-" if each.step is None else f"{each.step:,}",
            "-" if each.loss is None else f"{each.loss:.4f}",
            format_count(each.tokens_per_second),
            format_duration(each.age_seconds),
        ]
        for each in summaries
    ]
    print(table(header, rows, right=header[2:]))
