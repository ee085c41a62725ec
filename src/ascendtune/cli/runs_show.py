"""`ascendtune runs show`"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascendtune.cli.options import AsJson

if TYPE_CHECKING:
    from ascendtune.core.rundir import RunDir


def show(
    run: Annotated[Path, typer.Argument(help="A run directory.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show one run: how it went, its data, versions, choices, checkpoints and pictures.

    \b
    ascendtune runs show runs/alpaca-qwen
    """
    from ascendtune.core.rundir import RunDir

    facts = _facts(RunDir.open(run))
    print(json.dumps(facts, indent=2, ensure_ascii=False) if as_json else "\n".join(_lines(facts)))


def _facts(run: RunDir) -> dict[str, Any]:
    from ascendtune.cli.run_summary import state_of, unless_damaged

    record = run.read()
    return {
        "path": str(run),
        **record,
        "state": state_of(record),
        "last_metrics": unless_damaged(run.last_metrics),
        "last_evaluation": unless_damaged(lambda: next(reversed(list(run.read_evaluations())), None)),
        "data_report": unless_damaged(run.read_data_report),
        "checkpoints": [str(run.checkpoint(step)) for step in run.checkpoint_steps()],
        "model": str(run.model) if run.model.is_dir() else None,
        "pictures": sorted(str(path) for path in run.path.glob("loss.*")),
    }


def _lines(facts: dict[str, Any]) -> list[str]:
    from ascendtune.core.units import count_of

    attempts, cause = facts.get("attempts") or [], facts.get("exit_cause")
    times = count_of(len(attempts), "attempt") if attempts else "no attempt has begun to train"
    lines = [f"{facts['path']}: {facts['state']}, {times}"]
    hosts = attempts[-1].get("hosts") if attempts else None
    if isinstance(hosts, list) and len(hosts) > 1:
        lines.append(f"  on {', '.join(map(str, hosts))}")
    if cause:
        lines += [
            f"  {cause.get('what', 'no cause was noted')}",
            *([f"  do: {cause['remedy']}"] if cause.get("remedy") else []),
        ]
    lines += _section("last step", _without(facts["last_metrics"], "batch_hash", "seconds"))
    lines += _section("last evaluation", facts["last_evaluation"])
    lines += _data(Path(facts["path"]), facts["data_report"])
    lines += _section("chosen", facts.get("resolved"))
    lines += _section("versions", facts.get("versions"))
    places = {
        "checkpoints": ", ".join(Path(path).name for path in facts["checkpoints"]),
        "model": facts["model"],
        "picture": ", ".join(facts["pictures"]),
        "recipe": str(Path(facts["path"]) / "recipe.yaml"),
    }
    return [*lines, *_section("files", places)]


def _data(run: Path, reports: dict[str, Any] | None) -> list[str]:
    """The reports of the training data, and of the evaluation data where there is some."""
    from ascendtune.cli.complain import warn
    from ascendtune.cli.terminal import width
    from ascendtune.data.report import DataReport, lines

    shown: list[str] = []
    for name, report in (reports or {}).items():
        if report is None:
            continue
        try:
            shown += ["", f"{name} data", *lines(DataReport.from_json(report), width(sys.stdout) or 100)]
        except (AttributeError, KeyError, TypeError, ValueError):
            # It is JSON, of another form than ours.
            warn(f"data.json is damaged: {run / 'data.json'}")
            break
    return shown


def _section(title: str, values: dict[str, Any] | None) -> list[str]:
    from ascendtune.cli.run_words import in_words
    from ascendtune.cli.terminal import width

    shown = in_words(values or {}, width(sys.stdout))
    return ["", title, *shown] if shown else []


def _without(values: dict[str, Any] | None, *names: str) -> dict[str, Any] | None:
    return {name: value for name, value in values.items() if name not in names} if values else None
