"""Judges the cells of a benchmark: speed-up, efficiency, and the targets that they miss, with reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ascendtune.check.bench.cells import COMPARISONS, RECIPE_STRATEGY, CellResult, Comparison
from ascendtune.check.bench.language import say
from ascendtune.check.profile.advice import advice_for
from ascendtune.check.profile.advice_entry import Advice
from ascendtune.check.profile.language import say as say_of_profile
from ascendtune.check.profile.profile import RankProfile
from ascendtune.check.profile.show import parts_of
from ascendtune.core.foreign_json import is_number

LEAST_EFFICIENCY = 0.75
"""The target: 6 to 7 times as fast on 8 devices."""
MEMORY_RATIO = (0.70, 0.85)
"""Target share of a device's memory: below it a larger batch fits, above it the run is close to the limit."""
UTILIZATION_RATIO = (0.85, 0.95)
_LEAST_LOSS = 0.1
"""Share of all lost time: smaller parts are not reported."""
_MOST_TOKENS = 1e15


@dataclass(frozen=True)
class SpeedupRow:
    """A row of the table."""

    comparison: Comparison
    result: CellResult
    speedup: float | None
    """Relative to the fewest devices in this comparison that could be trained."""
    efficiency: float | None
    """The speed-up divided by the ratio of the numbers of devices; 1 is linear."""
    base_devices: int | None
    memory_ratio: float | None
    """Share of a device's memory."""


@dataclass(frozen=True)
class Shortfall:
    """A target that a row misses."""

    comparison: Comparison
    cell: str
    measure: str
    """efficiency, memory or utilisation."""
    value: float
    what: str
    why: str | None = None
    """From the profiles of this cell and of its baseline; None if they show no reason."""


def speedup_rows(results: Sequence[CellResult], memory_bytes: int | None) -> list[SpeedupRow]:
    """The rows of both comparisons; a cell may be in both.

    Args:
        memory_bytes: memory of one device; None if unknown.
    """
    most = max(each.cell.devices for each in results)
    least_accumulate = min(each.cell.accumulate for each in results)
    batch = most * least_accumulate
    rows = []
    for comparison in COMPARISONS:
        members = [
            each for each in results
            if (each.cell.accumulate == least_accumulate if comparison == COMPARISONS[0]
                else each.cell.devices * each.cell.accumulate == batch)
        ]  # fmt: skip
        rows += [_row(comparison, each, _base(each, members), memory_bytes) for each in members]
    return rows


def _base(result: CellResult, members: Sequence[CellResult]) -> CellResult | None:
    """The baseline of `result`: the same strategy on the fewest devices; a training on one device serves all."""
    candidates = [
        each for each in members if each.repeats and each.cell.strategy in (RECIPE_STRATEGY, result.cell.strategy)
    ]
    return min(candidates, key=lambda each: each.cell.devices, default=None)


def _row(comparison: Comparison, result: CellResult, base: CellResult | None, memory_bytes: int | None) -> SpeedupRow:
    rate, base_rate = result.rate, base.rate if base else None
    speedup = rate / base_rate if rate and base_rate else None
    used = result.memory_bytes()
    return SpeedupRow(
        comparison, result, speedup,
        speedup / (result.cell.devices / base.cell.devices) if speedup and base else None,
        base.cell.devices if base else None,
        used / memory_bytes if used and memory_bytes else None,
    )  # fmt: skip


def insignificant_differences(rows: Sequence[SpeedupRow]) -> list[str]:
    """Differences between two rows of a table that are smaller than those between their repeats.

    Each row is compared with its baseline, and with other strategies on as many devices. The sentences are in the
    current language.
    """
    sentences = []
    for comparison in COMPARISONS:
        members = [each.result for each in rows if each.comparison == comparison and each.result.repeats]
        for at, one in enumerate(members):
            base = _base(one, members)
            rivals = [each for each in members[:at] if each.cell.devices == one.cell.devices]
            for other in ([base] if base is not None and base is not one else []) + rivals:
                if doubt := _doubt(one, other):
                    sentences.append(say("{comparison}: {doubt}", comparison=say(comparison), doubt=doubt))
    return sentences


def _doubt(one: CellResult, other: CellResult) -> str | None:
    rate, other_rate = one.rate, other.rate
    if not rate or not other_rate:
        return None
    difference = abs(rate / other_rate - 1)
    spread = max(one.spread or 0.0, other.spread or 0.0)
    if spread <= difference:
        return None
    return say(
        "{cell} and {other} differ by {difference}, their repeats by up to {spread}: the difference may be chance; "
        "measure more --repeats on a quiet machine",
        cell=one.cell.name, other=other.cell.name, difference=f"{difference:.1%}", spread=f"{spread:.1%}",
    )  # fmt: skip


Profiles = Callable[[CellResult], list[RankProfile] | None]
"""Reads the profile of a cell, one entry per rank; None if it has none."""


def shortfalls(rows: Sequence[SpeedupRow], profile_of: Profiles, *, on_host: bool, cores: int) -> list[Shortfall]:
    """The targets that rows miss. The worst efficiency of each comparison is explained by its profile.

    The sentences are in the current language.

    Args:
        on_host: the ranks compute on the CPU: there are no targets for its memory and utilisation.
        cores: number of cores of this machine.
    """
    all_shortfalls = []
    for comparison in COMPARISONS:
        short = [
            (row.efficiency, at) for at, row in enumerate(rows)
            if row.comparison == comparison and row.efficiency is not None and row.efficiency < LEAST_EFFICIENCY
        ]  # fmt: skip
        for efficiency, at in short:
            row = rows[at]
            why = _why_slow(row, rows, profile_of, on_host, cores) if at == min(short)[1] else None
            measured = say(
                "{speedup} times as fast as {devices}: an efficiency of {efficiency}, the target is {target} (6 times "
                "on 8 devices)",
                speedup=f"{row.speedup:.2f}", devices=_devices(row.base_devices or 1),
                efficiency=f"{efficiency:.0%}", target=f"{LEAST_EFFICIENCY:.0%}",
            )  # fmt: skip
            all_shortfalls.append(Shortfall(comparison, row.result.cell.name, "efficiency", efficiency, measured, why))
    if not on_host:
        # A cell in both comparisons is reported once.
        for row in {row.result.cell.name: row for row in reversed(rows)}.values():
            all_shortfalls += _of_device(row, profile_of)
    return all_shortfalls


def _why_slow(
    row: SpeedupRow, rows: Sequence[SpeedupRow], profile_of: Profiles, on_host: bool, cores: int
) -> str | None:
    """The parts of the step that take more time than in the baseline, and the first advice."""
    if on_host and row.result.cell.devices > cores:
        ranks = row.result.cell.devices
        return say("{ranks} ranks share {cores} {cores:core|cores} of the CPU", ranks=ranks, cores=cores)
    members = [each.result for each in rows if each.comparison == row.comparison]
    base = _base(row.result, members)
    now = profile_of(row.result)
    before = profile_of(base) if base else None
    if not now:
        return None
    reasons = []
    if before and (lost := lost_time(now[0], before[0])):
        parts = say(", ").join(f"{share:.0%} {say_of_profile(name)}" for name, share in lost)
        reasons.append(say("of the device time that it takes more for each token, {parts}", parts=parts))
    if advice := advice_for(now):
        reasons.append(_first(advice))
    return say("; ").join(reasons) or None


def lost_time(now: RankProfile, before: RankProfile) -> list[tuple[str, float]]:
    """Parts of the step in which `now` needs more device time per token than `before`, as shares of the difference.

    The largest first. Empty if the tokens of a step are unknown, or if no more time is needed.
    """
    one, other = _per_token(before), _per_token(now)
    if one is None or other is None:
        return []
    more = {name: seconds - one.get(name, 0.0) for name, seconds in other.items()}
    total = sum(seconds for seconds in more.values() if seconds > 0)
    if sum(more.values()) <= 0:
        return []
    shares = {name: seconds / total for name, seconds in more.items() if seconds >= _LEAST_LOSS * total}
    return sorted(shares.items(), key=lambda each: -each[1])


def _per_token(rank: RankProfile) -> dict[str, float] | None:
    """Part of the step -> seconds of all devices per token."""
    tokens, ranks = rank.facts.get("tokens_per_step"), rank.facts.get("world_size")
    if not is_number(tokens, 1, _MOST_TOKENS) or not is_number(ranks, 1, _MOST_TOKENS):
        return None
    factor = float(ranks) / float(tokens) / rank.split.steps
    return {title: seconds * factor for title, seconds, _ in parts_of(rank.split)}


def _of_device(row: SpeedupRow, profile_of: Profiles) -> list[Shortfall]:
    device_shortfalls, cell = [], row.result.cell.name
    memory, used = row.memory_ratio, row.result.average("utilization_ratio")
    if memory is not None and not MEMORY_RATIO[0] <= memory <= MEMORY_RATIO[1]:
        why = (
            say("a larger micro-batch fits: `ascendtune plan RECIPE batch.per_device=auto` finds the largest")
            if memory < MEMORY_RATIO[0]
            else say("a longer row may not fit: `ascendtune plan RECIPE` shows what takes the memory")
        )
        measured = say("{share} of the memory of a device is used: the target is {low} to {high}",
                       share=f"{memory:.0%}", **_percents(MEMORY_RATIO))  # fmt: skip
        device_shortfalls.append(Shortfall(row.comparison, cell, "memory", memory, measured, why))
    if used is not None and used < UTILIZATION_RATIO[0]:
        profiles = profile_of(row.result)
        advice = advice_for(profiles) if profiles else []
        measured = say("the devices are {share} utilised: the target is {low} to {high}",
                       share=f"{used:.0%}", **_percents(UTILIZATION_RATIO))  # fmt: skip
        device_shortfalls.append(
            Shortfall(row.comparison, cell, "utilisation", used, measured, _first(advice) if advice else None)
        )
    return device_shortfalls


def _first(advice: Sequence[Advice]) -> str:
    first = advice[0]
    return say_of_profile("{what} ({code}): {remedy}", what=first.what, code=first.code, remedy=first.remedy)


def _devices(count: int) -> str:
    return say("{count} {count:device|devices}", count=count)


def _percents(ratios: tuple[float, float]) -> dict[str, str]:
    return {"low": f"{ratios[0]:.0%}", "high": f"{ratios[1]:.0%}"}
