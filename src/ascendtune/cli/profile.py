"""`ascendtune profile`"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ascendtune.check.profile.language import say
from ascendtune.cli.options import AsJson, DeviceCount, DeviceIds, LanguageOption, Overrides
from ascendtune.cli.run_names import complete_run
from ascendtune.cli.terminal import PLAIN_COLUMNS, in_language, print_json, width
from ascendtune.core.errors import CheckFailed, InputError
from ascendtune.core.terminal_text import safe

_STEPS = "5-8"
"""Default if neither the command line nor the recipe sets steps."""
_SNIFFED_BYTES = 1 << 16


def profile(
    target: Annotated[
        Path,
        typer.Argument(help="A recipe to profile; or a run, a directory or a trace to show.", show_default=False),
    ],
    overrides: Overrides = None,
    steps: Annotated[
        str | None, typer.Option(metavar="STEPS", help="Steps to profile, e.g. 5-8 (default: 5-8): profile.steps.")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(metavar="0,1", help="Ranks to profile (default: all): profile.ranks.")
    ] = None,
    devices: DeviceCount = None,
    device_ids: DeviceIds = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="OTHER",
            help="Compare with this run, directory or trace, by operator.",
            autocompletion=complete_run,
        ),
    ] = None,
    tries: Annotated[
        bool, typer.Option("--try", help="Also measure the first three changes that recipe keys can make.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write the page with bars and tables to this file.")
    ] = None,
    lang: LanguageOption = None,
    as_json: AsJson = False,
) -> None:
    """Show how the time of a training step is spent, and which changes may help.

    \b
    ascendtune profile recipe.yaml
    ascendtune profile recipe.yaml --steps 10-12 --devices 2
    ascendtune profile recipe.yaml --try
    ascendtune profile runs/my-run
    ascendtune profile trace.json.gz
    ascendtune profile runs/new --against runs/old

    A recipe is trained for its first steps, in the run directory NAME-profile. A run is shown if its recipe
    has profile.steps; summary.json and report.html are written beside its traces. Reads traces of torch.profiler,
    compressed or not, and the tables of torch_npu.profiler.
    """
    from ascendtune.check.profile.advice import advice_for
    from ascendtune.check.profile.comparison import comparison_as_plain, comparison_as_text
    from ascendtune.check.profile.page import write_page
    from ascendtune.check.profile.profile import read_profile
    from ascendtune.check.profile.show import as_plain, as_text
    from ascendtune.cli.profile_trial import trials_as_text, try_changes
    from ascendtune.cli.run_names import run_named
    from ascendtune.core import log
    from ascendtune.core.directories import require_place_for
    from ascendtune.core.records import write_json

    log.set_up()
    chosen = in_language(lang, as_json=as_json)
    if report:
        require_place_for(report)
    target = Path(run_named(target))
    before = read_profile(Path(run_named(against))) if against else None
    # Before the user's keys, which may disable the recording of allocations.
    keys = ["profile.memory=true", *(overrides or [])]
    keys += [f"profile.steps={steps}"] if steps else []
    keys += [f"profile.ranks=[{ranks}]"] if ranks else []

    def record(changes: list[str], ending: str) -> Path:
        return _record(target, [*keys, *changes], ending, devices=devices, device_ids=device_ids)

    if _is_recipe(target):
        place = record([], "")
    elif overrides or steps or ranks or devices or device_ids or tries:
        raise InputError(
            "keys, --steps, --ranks, --try and devices are for recording, and this was recorded already",
            code="conflicting-options",
            remedy="give the recipe to record anew, or leave them out",
        )
    else:
        place = target
    try:
        found = read_profile(place)
        advice = advice_for(found)
        trials = try_changes(advice, found[0], record) if tries else []
    except KeyboardInterrupt:
        log.say(f"stopped; `ascendtune profile {shlex.quote(str(place))}` shows this profile")
        raise

    def content() -> dict[str, Any]:
        """The profile as plain values; its sentences are in the language that is set."""
        return as_plain(found, advice_for(found)) | ({"trials": [asdict(each) for each in trials]} if tries else {})

    pages = [report] if report else []
    if (place / "run.json").is_file() and os.access(place / "profile", os.W_OK):
        write_json(place / "profile" / "summary.json", content())
        pages.append(place / "profile" / "report.html")
    with in_language(lang, encoding="utf-8"):
        for page in pages:
            write_page(page, found)
    with chosen:
        if as_json:
            print_json(content() | ({} if before is None else {"against": comparison_as_plain(found, before)}))
            return
        columns = width(sys.stdout) or PLAIN_COLUMNS
        files = [say("profile: {path}", path=safe(str(place)))]
        files += [say("report: {path}", path=safe(str(page))) for page in pages]
        sections = [as_text(found, advice_for(found), columns), "\n".join(files)]
        sections += [] if before is None else [comparison_as_text(found, before, columns)]
        sections += [trials_as_text(trials, columns)] if tries else []
        print("\n\n".join(sections))


def _is_recipe(path: Path) -> bool:
    """Whether `path` is a recipe: a file that is not a trace. LLaMA-Factory's recipes may be JSON, as traces are."""
    from ascendtune.check.profile.ascend import is_of_folder
    from ascendtune.core.foreign_json import open_foreign

    if path.is_dir() or path.suffix in (".gz", ".db") or not path.exists() or is_of_folder(path):
        return False
    if path.suffix != ".json":
        return True
    with open_foreign(path) as file:
        start = file.read(_SNIFFED_BYTES)
    if not start.strip():
        # An interrupted copy: among files with this name, traces are far more common.
        return False
    return b'"traceEvents"' not in start and not start.lstrip().startswith(b"[") and b'"schemaVersion"' not in start


def _record(recipe: Path, overrides: list[str], ending: str, *, devices: int | None, device_ids: str | None) -> Path:
    """Train the first steps of `recipe`; returns the run directory.

    Args:
        ending: end of the name of the run; "" for the recipe as the user requests it.

    Raises:
        CheckFailed: the training failed; it has printed the reason.
    """
    from ascendtune.cli.child_training import TrainingInterrupted, train_briefly
    from ascendtune.core import log
    from ascendtune.recipe.recipe import Recipe
    from ascendtune.recipe.sections import UNTRACKED

    requested = Recipe.load(recipe, overrides)
    overrides = overrides if requested.profile.steps else [*overrides, f"profile.steps={_STEPS}"]
    name = f"{requested.name}-profile" + (f"-{ending}" if ending else "")
    overrides = [*overrides, f"name={name}", "profile.only=true", "checkpoint.resume=never", *UNTRACKED]
    log.say(f"training the first steps of {requested.name}, to profile steps {requested.profile.steps or _STEPS}")
    try:
        code, run = train_briefly(recipe, overrides, devices=devices, device_ids=device_ids)
    except TrainingInterrupted as stop:
        if not ending:
            traces = list((stop.run / "profile").glob("rank_*.trace.json.gz")) if stop.run else []
            log.say(
                f"stopped: `ascendtune profile {shlex.quote(str(stop.run))}` shows the steps that were profiled"
                if traces
                else "stopped: no step was profiled; the same command begins anew"
            )
        raise
    if code or run is None:
        raise CheckFailed(
            "the steps to profile could not be trained",
            code="profile-failed",
            remedy="look at the error above; `ascendtune train` with the same recipe shows it too",
            where=run,
        )
    return run
