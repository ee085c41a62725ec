"""`ascendtune runs list` and `runs show`. Missing values are None, never 0."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from ascendtune.cli.messages import warn
from ascendtune.cli.options import AsJson
from ascendtune.cli.run_names import complete_run, run_named
from ascendtune.cli.terminal import PLAIN_COLUMNS, print_json, table, width
from ascendtune.core.attempt_time import seconds_since
from ascendtune.core.checkpoint_names import best_step
from ascendtune.core.errors import AscendtuneError, InputError
from ascendtune.core.procfs import is_alive
from ascendtune.core.rundir import RunDir
from ascendtune.core.terminal_text import wrapped
from ascendtune.core.units import count_of, format_bytes, format_count, format_duration

_SHOWN = 50
"""Runs that `runs list` prints without --all."""
_RECENT = 32
"""Records used for the speed."""


def list_runs(
    directory: Annotated[Path, typer.Argument(help="Directory that contains run directories.")] = Path("runs"),
    everything: Annotated[bool, typer.Option("--all", help=f"More than the newest {_SHOWN}.")] = False,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest last. JSON has all of them.

    \b
    ascendtune runs list
    ascendtune runs list /data/runs --json

    State "lost": the run's process ended without a record, as after a kill or a restart of the machine. Speed: the
    median of the newest records.
    """
    listed = find_runs(directory)
    summaries = [RunSummary.of(run) for run in (listed if everything or as_json else listed[-_SHOWN:])]
    if as_json:
        print_json([asdict(each) for each in summaries])
        return
    if not summaries:
        print(f"no runs in {directory}")
        return
    header = ["name", "state", "step", "loss", "tokens/s", "age"]
    rows = [
        [
            each.name,
            each.state,
            steps_in_words(each.step, each.total_steps),
            "-" if each.loss is None else f"{each.loss:.4f}",
            format_count(each.tokens_per_second),
            format_duration(each.age_seconds),
        ]
        for each in summaries
    ]
    print(table(header, rows, right=header[2:]))
    if len(listed) > len(summaries):
        print(f"{len(listed) - len(summaries):,} older: ascendtune runs list {shlex.quote(str(directory))} --all")


def show(
    run: Annotated[
        Path, typer.Argument(help="A run directory, or its name.", show_default=False, autocompletion=complete_run)
    ],
    as_json: AsJson = False,
) -> None:
    """Show one run: outcome, data, versions, choices, checkpoints and plots.

    \b
    ascendtune runs show runs/alpaca-qwen
    """
    facts = _facts(RunDir.open(run_named(run)))
    print_json(facts) if as_json else print("\n".join(_lines(facts)))


def _facts(run: RunDir) -> dict[str, Any]:
    record, evaluations = run.read(), unless_damaged(run.comparable_evaluations)
    return {
        "path": str(run),
        **record,
        "state": state_of(record),
        "last_metrics": unless_damaged(run.last_metrics),
        "last_evaluation": evaluations[-1] if evaluations else None,
        "best_evaluation": _best(run, evaluations) if evaluations else None,
        "data_report": unless_damaged(run.read_data_report),
        "checkpoints": [str(run.checkpoint(step)) for step in run.checkpoint_steps()],
        "model": str(run.model) if run.model.is_dir() else None,
        "pictures": sorted(str(path) for path in run.path.glob("loss.*")),
    }


def _best(run: RunDir, evaluations: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The evaluation of the lowest loss."""
    step = best_step(run)
    return next((each for each in evaluations if step is not None and each.get("step") == step), None)


def _lines(facts: dict[str, Any]) -> list[str]:
    attempts, cause = facts.get("attempts") or [], facts.get("exit_cause")
    times = count_of(len(attempts), "attempt") if attempts else "training has not started"
    lines = [f"{facts['path']}: {facts['state']}, {times}"]
    hosts = attempts[-1].get("hosts") if attempts else None
    if isinstance(hosts, list) and len(hosts) > 1:
        lines.append(f"  on {', '.join(map(str, hosts))}")
    if cause:
        lines += [
            f"  {cause.get('what', 'no cause was recorded')}",
            *([f"  do: {cause['remedy']}"] if cause.get("remedy") else []),
        ]
    imported = facts.get("imported")
    if isinstance(imported, dict):
        lines[0] = f"{facts['path']}: {facts['state']}"
        lines += _section("imported", {"from": imported.get("from"), "points": imported.get("points")})
    lines += _section("last step", _without_names(facts["last_metrics"], "batch_hash", "seconds", "time"))
    lines += _section("last evaluation", _evaluation(facts["last_evaluation"]))
    if facts["best_evaluation"] != facts["last_evaluation"]:
        lines += _section("best evaluation", _evaluation(facts["best_evaluation"]))
    lines += _data(Path(facts["path"]), facts["data_report"])
    lines += _section("chosen", facts.get("resolved"))
    lines += _section("versions", facts.get("versions"))
    recipe = Path(facts["path"]) / "recipe.yaml"
    places = {
        "checkpoints": ", ".join(Path(path).name for path in facts["checkpoints"]),
        "model": facts["model"],
        "picture": ", ".join(facts["pictures"]),
        "recipe": str(recipe) if recipe.is_file() else None,
    }
    return [*lines, *_section("files", places)]


def _data(run: Path, reports: dict[str, Any] | None) -> list[str]:
    """The reports on training data and evaluation data."""
    from ascendtune.data.report import DataReport, lines

    shown: list[str] = []
    for name, report in (reports or {}).items():
        if report is None:
            continue
        try:
            shown += ["", f"{name} data", *lines(DataReport.from_json(report), width(sys.stdout) or PLAIN_COLUMNS)]
        except (AttributeError, KeyError, TypeError, ValueError):
            # JSON with another structure.
            warn(f"data.json is damaged: {run / 'data.json'}")
            break
    return shown


def _section(title: str, values: dict[str, Any] | None) -> list[str]:
    shown = in_words(values or {}, width(sys.stdout))
    return ["", title, *shown] if shown else []


def _evaluation(record: dict[str, Any] | None) -> dict[str, Any] | None:
    of_datasets = (record or {}).get("datasets")
    each = {f"on {name}": values for name, values in of_datasets.items()} if isinstance(of_datasets, dict) else {}
    known = _without_names(record, "time", "datasets")
    return {**known, **each} if known else None


def _without_names(values: dict[str, Any] | None, *names: str) -> dict[str, Any] | None:
    return {name: value for name, value in values.items() if name not in names} if values else None


_Read = TypeVar("_Read")

_DEPTH = 3


@dataclass(frozen=True)
class RunSummary:
    """One line of `runs list`."""

    name: str
    path: str
    state: str
    """As in run.json; or `lost` (it is running according to run.json, but has no process), `damaged`, `unreadable`."""
    step: int | None
    total_steps: int | None
    loss: float | None
    tokens_per_second: float | None
    """Median of the newest records: a single step, such as the last one with the remaining rows, may differ widely."""
    age_seconds: float | None
    """Time since the newest attempt started; None where only a clock tells that was set back since."""

    @classmethod
    def of(cls, run: RunDir) -> RunSummary:
        try:
            record, last = run.read(), run.last_metrics() or {}
        except AscendtuneError as error:
            # One damaged run must not hide the others.
            warn(f"{error.what}: {error.where or run}")
            return cls._unknown(run, "damaged")
        except OSError as error:
            warn(f"permission denied: {error.filename or run}")
            return cls._unknown(run, "unreadable")
        return cls(
            name=run.path.name,
            path=str(run),
            state=state_of(record),
            step=count_or_none(last.get("step")),
            total_steps=total_steps(record),
            loss=number(last.get("loss")),
            tokens_per_second=_speed(run),
            age_seconds=seconds_since((record.get("attempts") or [{"started": record.get("created")}])[-1]),
        )

    @classmethod
    def _unknown(cls, run: RunDir, state: str) -> RunSummary:
        return cls(run.path.name, str(run), state, None, None, None, None, None)


def _speed(run: RunDir) -> float | None:
    from statistics import median

    try:
        speeds = [number(each.get("tokens_per_second")) for each in run.newest_metrics(_RECENT)]
    except AscendtuneError:
        # A record before the last one is damaged.
        return None
    return median(known) if (known := [each for each in speeds if each is not None]) else None


def find_runs(directory: Path) -> list[RunDir]:
    """Run directories at or below `directory`, oldest first.

    Raises:
        InputError: the directory does not exist.
    """
    if not directory.is_dir():
        raise InputError(
            "no such directory",
            code="path-missing",
            remedy=_newest_elsewhere()
            or "give the directory that contains your runs; `ascendtune train` creates the first one",
            where=directory,
        )
    return sorted(_below(directory, _DEPTH), key=_changed)


def _newest_elsewhere() -> str | None:
    """The remedy that names the directory of the job registry's newest run; None if there is none."""
    from ascendtune.job.registry import jobs

    run_directories = [RunDir(job.run_dir) for job in jobs()]
    newest = next((run for run in reversed(run_directories) if run.run_json.is_file()), None)
    if newest is None:
        return None
    # `align nan` repeats a run in a directory below it.
    outermost = [place for place in (newest.path, *newest.path.parents) if RunDir(place).run_json.is_file()][-1]
    return f"give the directory that contains your runs; the newest one is in {shlex.quote(str(outermost.parent))}"


def _below(directory: Path, depth: int) -> Iterator[RunDir]:
    run = RunDir(directory)
    try:
        # A link, a pipe or a device also counts, and is shown as damaged.
        is_run = os.path.lexists(run.run_json)
        entries = [] if is_run or not depth else list(os.scandir(directory))
        inside = [each for each in entries if not each.name.startswith(".") and each.is_dir(follow_symlinks=False)]
    except PermissionError:
        # It may be a run; it is shown as unreadable.
        is_run, inside = True, []
    except OSError:
        # Removed meanwhile, or a directory of the kernel that cannot be listed.
        return
    if is_run:
        yield run
    for entry in inside:
        yield from _below(Path(entry.path), depth - 1)


def _changed(run: RunDir) -> float:
    """The time at which run.json was changed, in seconds since the epoch; 0 if the run was removed meanwhile."""
    for path in (run.run_json, run.path):
        with suppress(OSError):
            return path.lstat().st_ctime
    return 0.0


def state_of(record: dict[str, Any]) -> str:
    """The state, `lost` if the process was killed before it could record its exit."""
    state, attempts = str(record["state"]), record.get("attempts") or []
    if state != "running" or not attempts:
        return state
    newest = attempts[-1]
    pid, start_ticks = count_or_none(newest.get("pid")), newest.get("start_ticks")
    boot, namespace, host = (newest.get(key) for key in ("boot_id", "pid_namespace", "host"))
    if pid is None or type(start_ticks) is not int or not (isinstance(boot, str) and isinstance(namespace, str)):
        return state
    lives = is_alive(pid, start_ticks, boot=boot, namespace=namespace, host=str(host))
    return "lost" if lives is False else state


def number(value: Any) -> float | None:
    """`value` if it is a number; NaN and infinity are allowed, because a loss can be either."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def count_or_none(value: Any) -> int | None:
    """`value` if it is a valid process id or step."""
    return value if type(value) is int and 0 <= value < 1 << 31 else None


def total_steps(record: Mapping[str, Any]) -> int | None:
    """The steps of the whole run, which run.json contains once the model is loaded."""
    resolved = record.get("resolved")
    return count_or_none(resolved.get("total_steps")) if isinstance(resolved, dict) else None


def steps_in_words(step: int | None, total: int | None) -> str:
    """ "135/3,000", "135", "-"."""
    return "-" if step is None else f"{step:,}" + (f"/{total:,}" if total is not None else "")


def unless_damaged(read: Callable[[], _Read]) -> _Read | None:
    """The result of `read`; None and a warning if the file is damaged or unreadable, so that the rest is shown."""
    try:
        return read()
    except AscendtuneError as error:
        warn(f"{error.what}: {error.where}")
    except PermissionError as error:
        warn(f"permission denied: {error.filename}")
    return None


def in_words(values: Mapping[str, Any], columns: int | None) -> list[str]:
    """One line per known value, with names and values aligned.

    Args:
        columns: width of the terminal; longer lines are wrapped below their value. None: no wrapping.
    """
    known = {name: value for name, value in values.items() if value not in (None, "", [], {})}
    shown = [(name.removesuffix("_bytes"), _format_value(name, value)) for name, value in known.items()]
    longest = max((len(name) for name, _ in shown), default=0)
    return [wrapped(f"  {name.ljust(longest)}  {text}", columns, indent=longest + 4) for name, text in shown]


def plain(value: Any) -> str:
    """A value of a recipe as YAML: true, null, [a, b]."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(plain, value))}]"
    return str(value)


def _format_value(name: str, value: Any) -> str:
    match value:
        case bool():
            return plain(value)
        case int() | float() if name.endswith("_bytes"):
            return format_bytes(value)
        case int() | float() if name.endswith("seconds"):
            return format_duration(value) if value >= 0.1 else f"{value:.2g} s"
        case float() if name == "epoch":
            return f"{value:.3g}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"
        case int():
            return f"{value:,}"
        case dict():
            return _of_section(value)
        case list():
            return ", ".join(_format_value("", each) for each in value)
    return str(value)


def _of_section(values: Mapping[str, Any]) -> str:
    if values.keys() >= {"kind", "name", "world_size"}:
        settings = values.get("settings")
        set_to = f"; {_of_section(settings)}" if isinstance(settings, Mapping) and settings else ""
        return f"{values['name']} ({values['kind']} × {values['world_size']}){set_to}"
    reason = f" ({values['reason']})" if values.get("reason") else ""
    others = {name: _format_value(name, value) for name, value in values.items() if name != "reason"}
    of_value: dict[str, list[str]] = {}
    for name, text in others.items():
        of_value.setdefault(text, []).append(name)
    if len(of_value) < len(others):
        return "; ".join(f"{', '.join(names)}: {text}" for text, names in of_value.items()) + reason
    return ", ".join(text if name == "name" else f"{name} {text}" for name, text in others.items()) + reason
