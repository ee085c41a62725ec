"""A benchmark as Markdown and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ascendtune.check.bench.cells import COMPARISONS, RECIPE_STRATEGY, CellResult
from ascendtune.check.bench.judge import Shortfall, SpeedupRow
from ascendtune.check.bench.language import say
from ascendtune.core.terminal_text import safe
from ascendtune.core.units import format_bytes

SCHEMA_VERSION = 1
_HEADS = ("devices", "strategy", "global batch", "tokens/s", "mean", "spread", "speed-up", "efficiency", "memory",
          "utilisation", "power")  # fmt: skip
LEFT_ALIGNED = "strategy"
METHOD = (
    "tokens/s is the median over repeats of the tokens of the measured steps over their seconds, mean the mean over "
    "repeats, spread (fastest - slowest) / median. Speed-up and efficiency compare with the fewest devices of the same "
    "table that could be trained."
)


@dataclass(frozen=True)
class BenchSettings:
    """The recipe and the devices of a benchmark."""

    recipe: str
    """Name of the recipe."""
    device: str
    kind: str
    memory_bytes: int | None
    """Memory of one device; on CPU that of the host."""
    cores: int
    steps: int
    """Measured steps of each training."""
    warm_up: int
    """Number of steps before the measured ones."""
    repeats: int
    version: str


def as_plain(
    setting: BenchSettings, rows: Sequence[SpeedupRow], short: Sequence[Shortfall], notes: Sequence[str]
) -> dict[str, Any]:
    """The summary as plain values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "setting": asdict(setting),
        "rows": [_row_as_plain(each) for each in rows],
        "shortfalls": [asdict(each) for each in short],
        "notes": list(notes),
    }


def _row_as_plain(row: SpeedupRow) -> dict[str, Any]:
    result = row.result
    return {
        "comparison": row.comparison,
        **asdict(result.cell),
        "global_batch": result.cell.global_batch,
        "chosen_strategy": chosen_strategy(result),
        "tokens_per_second": result.rate,
        "mean_tokens_per_second": result.mean_rate,
        "spread_ratio": result.spread,
        "repeats_tokens_per_second": [each.tokens_per_second for each in result.repeats],
        "speedup": row.speedup,
        "efficiency": row.efficiency,
        "base_devices": row.base_devices,
        "memory_bytes": result.memory_bytes(),
        "memory_ratio": row.memory_ratio,
        "utilization_ratio": result.average("utilization_ratio"),
        "power_watts": result.average("power_watts"),
        "failure": result.failure,
    }


def chosen_strategy(result: CellResult) -> str:
    """The strategy that the runs chose; without runs, the requested one."""
    return next((each.strategy for each in result.repeats if each.strategy), result.cell.strategy)


def as_markdown(
    setting: BenchSettings, rows: Sequence[SpeedupRow], short: Sequence[Shortfall], notes: Sequence[str]
) -> str:
    """The tables of both comparisons, the missed targets, and the method of measurement."""
    lines = [f"# {title(_name(setting.recipe), _name(setting.device))}", "", _prose(head(setting))]
    for comparison in COMPARISONS:
        heads, content = table_of([each for each in rows if each.comparison == comparison])
        shown = say(comparison)
        lines += ["", f"## {shown[0].upper()}{shown[1:]}", "", "| " + " | ".join(map(say, heads)) + " |"]
        lines.append("|" + "|".join(" --- " if each == LEFT_ALIGNED else " ---: " for each in heads) + "|")
        lines += ["| " + " | ".join(map(_name, row)) + " |" for row in content]
    if failed := failures(rows):
        lines += ["", f"## {say('Not measured')}", ""]
        lines += [f"- {_name(each.cell.name)}{say(': ')}{_prose(each.failure or '')}" for each in failed]
    if short:
        lines += ["", f"## {say('Below the target')}", ""]
        for each in short:
            lines.append(f"- {say(each.comparison)}{say(', ')}{_name(each.cell)}{say(': ')}{_prose(each.what)}")
            if each.why:
                lines.append(f"  - {say('why: {reason}', reason=_prose(each.why))}")
    return "\n".join([*lines, "", say(METHOD), *(f"\n{_prose(note)}" for note in notes)]) + "\n"


def head(setting: BenchSettings) -> str:
    """Device, version and steps in one line."""
    memory = f", {format_bytes(setting.memory_bytes)}" if setting.memory_bytes else ""
    return say(
        "{device}; ascendtune {version}; steps: {steps} after {warm_up}; repeats: {repeats}",
        device=f"{setting.device}{memory}", version=setting.version, steps=setting.steps, warm_up=setting.warm_up,
        repeats=setting.repeats,
    )  # fmt: skip


def title(recipe: str, device: str) -> str:
    """The heading of tables and picture."""
    return say("{recipe} on {device}", recipe=recipe, device=device)


def failures(rows: Sequence[SpeedupRow]) -> list[CellResult]:
    """Cells without a measurement, without duplicates."""
    failed = {each.result.cell.name: each.result for each in rows if each.result.failure and not each.result.repeats}
    return list(failed.values())


def table_of(rows: Sequence[SpeedupRow]) -> tuple[list[str], list[list[str]]]:
    """Headings (in English) and cells of one comparison; columns without any value are left out."""
    content = [_values(each) for each in rows]
    columns = [at for at in range(len(_HEADS)) if any(row[at] != "-" for row in content)]
    return [_HEADS[at] for at in columns], [[row[at] for at in columns] for row in content]


def _values(row: SpeedupRow) -> list[str]:
    result = row.result
    strategy = chosen_strategy(result)
    utilization, power = result.average("utilization_ratio"), result.average("power_watts")
    return [
        str(result.cell.devices),
        say("as the recipe") if strategy == RECIPE_STRATEGY else strategy,
        str(result.cell.global_batch),
        say("failed") if result.failure and not result.repeats else _number(result.rate),
        _number(result.mean_rate),
        _percent(result.spread, 1),
        "-" if row.speedup is None else f"{row.speedup:.2f}",
        _percent(row.efficiency),
        format_bytes(result.memory_bytes()) if row.memory_ratio is None else _percent(row.memory_ratio),
        _percent(utilization),
        "-" if power is None else f"{power:,.0f} W",
    ]


def _name(text: str) -> str:
    """A foreign name in Markdown: on one line, without column separators and markup."""
    one_line = " ".join(safe(text).split())
    for mark in ("\\", "|", "<", "`", "[", "*"):
        one_line = one_line.replace(mark, "\\" + mark)
    return one_line


def _prose(text: str) -> str:
    """A sentence in Markdown, which may contain commands and files: on one line, without HTML, links and separators."""
    one_line = " ".join(safe(text).split())
    for mark in ("|", "<", "["):
        one_line = one_line.replace(mark, "\\" + mark)
    return one_line


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f} %"
