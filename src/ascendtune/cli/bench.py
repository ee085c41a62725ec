"""`ascendtune bench`"""

from __future__ import annotations

import sys
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.check.bench.language import say
from ascendtune.cli.messages import warn
from ascendtune.cli.options import MOST_PROCESSES, AsJson, LanguageOption, Overrides, Quiet, RecipeFile, several_of
from ascendtune.cli.terminal import PLAIN_COLUMNS, in_language, print_json, table, width
from ascendtune.core.errors import AscendtuneError, CheckFailed, InputError, MachineError
from ascendtune.core.suggest import known_names
from ascendtune.core.terminal_text import safe, wrap_words
from ascendtune.core.units import count_of

if TYPE_CHECKING:
    from ascendtune.check.bench.judge import Shortfall, SpeedupRow
    from ascendtune.check.bench.show import BenchSettings
    from ascendtune.check.profile.profile import RankProfile
    from ascendtune.machine.visible import VisibleDevices
    from ascendtune.recipe.recipe import Recipe

_STRATEGIES = ("ddp", "fsdp", "deepspeed")
_MOST_STEPS = 10_000
_SPARE = ("mean", "global batch", "power", "spread", "utilisation")
"""Columns that a narrow terminal omits, in this order; bench.md has all."""


def bench(
    recipe: RecipeFile,
    overrides: Overrides = None,
    devices: Annotated[
        str | None,
        typer.Option(metavar="1,2,4,8", help="Numbers of devices (default: powers of two, and all; on CPU 1,2)."),
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            metavar="ddp,fsdp",
            help="Strategies for several devices (default: the recipe's).",
            autocompletion=several_of(lambda: ("ddp", "fsdp", "deepspeed")),
        ),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", min=2, max=_MOST_STEPS, help="Steps to measure.")] = 20,
    warmup: Annotated[int, typer.Option(metavar="N", min=1, max=_MOST_STEPS, help="Steps before them.")] = 5,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="Trainings of each cell.")] = 3,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the results (default: runs/NAME-bench).")
    ] = None,
    quiet: Quiet = False,
    lang: LanguageOption = None,
    as_json: AsJson = False,
) -> None:
    """Measure how much faster a recipe trains on more devices.

    \b
    ascendtune bench recipe.yaml
    ascendtune bench recipe.yaml --devices 1,2,4,8
    ascendtune bench recipe.yaml --devices 1,8 --strategies ddp,fsdp

    Trains the first steps of the recipe on each number of devices, at an equal batch per device and at an equal global
    batch. Writes bench.md, bench.json and bench.svg. After Ctrl-C the same command continues after the last finished
    training. Exit code 1: a training failed.
    """
    from ascendtune.check.bench.cells import cells_of
    from ascendtune.check.bench.judge import insignificant_differences, shortfalls, speedup_rows
    from ascendtune.check.bench.picture import draw
    from ascendtune.check.bench.show import as_markdown, as_plain, title
    from ascendtune.cli.bench_cells import Bench, BenchedRecipe, measure
    from ascendtune.core import log
    from ascendtune.core.files import write_atomically
    from ascendtune.core.ownership import restrict_umask
    from ascendtune.machine.visible import visible_devices

    log.set_up(quiet=quiet)
    restrict_umask()
    chosen = in_language(lang, as_json=as_json)
    benched = BenchedRecipe.load(recipe, overrides or [])
    visible = visible_devices()
    on_host = not visible.vendor.is_accelerator
    setting = _setting(benched.recipe, visible, steps=steps, warmup=warmup, repeats=repeats)
    batch = benched.recipe.batch
    arrange = partial(
        cells_of,
        devices=_counts(devices, None if on_host else len(visible.ids)),
        strategies=known_names(strategies, _STRATEGIES, "strategy") if strategies is not None else [],
        per_device=batch.micro_batch,
        accumulate=batch.accumulate,
    )
    profile_of = cache(_profile_in)

    def judged() -> tuple[list[Shortfall], list[str]]:
        """Rows that miss the target, and notes, in the current language."""
        short = shortfalls(rows, lambda each: profile_of(each.directory), on_host=on_host, cores=setting.cores)
        return short, [*arrange()[1], *insignificant_differences(rows)]

    with Bench.open(output, benched, setting) as found:
        results = measure(found, arrange()[0], visible)
        rows = speedup_rows(results, None if on_host else setting.memory_bytes)
        found.write(summary=as_plain(setting, rows, *judged()))
        measured = [each for each in results if each.repeats]
        with in_language(lang, encoding="utf-8"):
            write_atomically(found.directory / "bench.md", as_markdown(setting, rows, *judged()))
            if measured:
                try:
                    draw(found.directory / "bench.svg", title(setting.recipe, setting.device), rows)
                except MachineError as error:
                    warn(f"no picture: {error.what}")
    with chosen:
        if as_json:
            print_json(as_plain(setting, rows, *judged()))
        else:
            print(_as_text(setting, rows, *judged()))
            print("\n" + say("results: {path}", path=safe(str(found.directory))))
    if not measured:
        raise CheckFailed(
            f"no training could be measured; the first failed: {results[0].failure}",
            code="nothing-measured",
            remedy="`ascendtune train` with the same recipe shows the error in full",
            where=found.directory / "log",
        )
    if any(each.failure and not each.repeats for each in results):
        raise typer.Exit(1)


def _as_text(setting: BenchSettings, rows: list[SpeedupRow], short: list[Shortfall], notes: list[str]) -> str:
    """Text for the terminal: the tables, failures, and rows that miss the target."""
    from ascendtune.check.bench.cells import COMPARISONS
    from ascendtune.check.bench.show import LEFT_ALIGNED, failures, head, table_of

    columns = width(sys.stdout) or PLAIN_COLUMNS
    lines = wrap_words(safe(head(setting)), columns, "", "")
    for comparison in COMPARISONS:
        heads, content = table_of([each for each in rows if each.comparison == comparison])
        right = [say(each) for each in heads if each != LEFT_ALIGNED]
        shown = table(list(map(say, heads)), content, right=right, spare=list(map(say, _SPARE)))
        lines += ["", say("{comparison}:", comparison=say(comparison)), shown]
    failed = failures(rows)
    if failed or short:
        lines.append("")
    for each in failed:
        words = say("not measured: {cell}: {reason}", cell=each.cell.name, reason=each.failure)
        lines += wrap_words(safe(words), columns, "", "  ")
    for one in short:
        words = say("{comparison}, {cell}: {what}", comparison=say(one.comparison), cell=one.cell, what=one.what)
        words += say("; ") + one.why if one.why else ""
        lines += wrap_words(safe(words), columns, say("below the target: "), "  ")
    for note in notes:
        lines += wrap_words(note, columns, "", "  ")
    return "\n".join(lines)


def _counts(text: str | None, visible: int | None) -> list[int]:
    """The numbers of devices, in ascending order.

    Args:
        visible: number of accelerators; None on the CPU.
    """
    if text is None:
        most = visible or 2
        powers = [1 << shift for shift in range(most.bit_length()) if 1 << shift <= most]
        return sorted({*powers, most})
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 6 and 1 <= int(word) <= MOST_PROCESSES for word in words):
        raise InputError(
            f"--devices {text} is not a list of numbers from 1 to {MOST_PROCESSES}",
            code="invalid-option-value",
            remedy="write it as 1,2,4,8",
        )
    counts = sorted({int(word) for word in words})
    if visible is not None and counts[-1] > visible:
        raise MachineError(
            f"{count_of(counts[-1], 'device')} requested, {visible} visible",
            code="too-few-devices",
            remedy=f"use numbers up to {visible}",
        )
    return counts


def _setting(recipe: Recipe, visible: VisibleDevices, *, steps: int, warmup: int, repeats: int) -> BenchSettings:
    from ascendtune import __version__
    from ascendtune.check.bench.show import BenchSettings
    from ascendtune.machine.visible import cpu_count
    from ascendtune.train.plan.estimator import target_here

    try:
        target = target_here(visible, 1)
        name, memory = target.name, target.memory_bytes
    except MachineError:
        name, memory = visible.vendor.noun, None
    return BenchSettings(recipe.name, name, visible.kind, memory, cpu_count(), steps, warmup, repeats, __version__)


def _profile_in(run: str | None) -> list[RankProfile] | None:
    """The profile of a run, one entry per rank; None without a run, or if its profile cannot be read."""
    from ascendtune.check.profile.profile import read_profile

    try:
        return read_profile(Path(run)) if run is not None else None
    except (AscendtuneError, OSError):
        return None
