"""Reads the tables of torch_npu's profiler: the folder ASCEND_PROFILER_OUTPUT of a rank.

step_trace_time.csv has the parts of each step, in microseconds: Computing + Communication(Not Overlapped) + Free is
the Stage. kernel_details.csv has a line for each kernel, with its step. communication.json has the elapsed, transit and
wait time of each collective and, under `p2p`, of sending and receiving, in milliseconds. Versions differ in their
columns, but not in the columns' names.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from ascendtune.check.profile.ascend_database import DATABASES, read_database
from ascendtune.check.profile.intervals import Interval, merged, uncovered, union
from ascendtune.check.profile.kinds import kind_of_collective, kind_of_operator
from ascendtune.check.profile.split import Split
from ascendtune.check.profile.trace import MOST_EVENTS, limit_error
from ascendtune.core.errors import InputError
from ascendtune.core.foreign_json import is_number, object_of, open_foreign, read_json_object, value_at

OUTPUT = "ASCEND_PROFILER_OUTPUT"
_STEPS, _KERNELS, _COMMUNICATION = "step_trace_time.csv", "kernel_details.csv", "communication.json"
_OF_FOLDER = frozenset(
    {_STEPS, _KERNELS, _COMMUNICATION, "trace_view.json", "operator_details.csv", "op_statistic.csv"}
)
_GROUPS = ("collective", "p2p")
_MICRO, _MILLI = 1e-6, 1e-3
_MOST_JSON_BYTES = 256 << 20
_LONGEST = 1e12
"""Longer than any step, in microseconds."""
_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,9})?")
_LONGEST_NAME = 300


def ascend_outputs(directory: Path) -> list[Path]:
    """The output folders of ranks in `directory`: itself, one inside, or those in its `…_ascend_pt` folders.

    A copy of such a folder may have another name.
    """
    if directory.name == OUTPUT or any((directory / name).is_file() for name in (_STEPS, _KERNELS)):
        return [directory]
    candidates = [directory / OUTPUT, *directory.glob(f"*_ascend_pt/{OUTPUT}")]
    return sorted(each for each in candidates if each.is_dir())


def is_of_folder(path: Path) -> bool:
    """Whether `path` is a file of an output folder, which is read as a whole."""
    return path.name in _OF_FOLDER and path.is_file() and bool(ascend_outputs(path.parent))


def read_ascend(output: Path) -> Split:
    """The time of the profiled steps of one rank.

    Raises:
        InputError: the folder has none of the tables, or they cannot be read.
        RecipeError: communication.json is damaged.
    """
    parts = {str(row.get("Step", "")): row for row in _rows(output / _STEPS)}
    kernels = _kernels(output / _KERNELS)
    if not parts and not kernels:
        if databases := sorted(output.glob(DATABASES)):
            return read_ascend_database(databases[0])
        raise InputError(
            f"{OUTPUT} contains no rows in {_STEPS}, no kernels in {_KERNELS}, and no database",
            code="no-profile",
            remedy='in Python: `from torch_npu.profiler.profiler import analyse; analyse("DIR")`; DIR is the directory '
            "that contains …_ascend_pt",
            where=output,
        )
    steps = sorted(parts or kernels, key=lambda step: (len(step), step))
    split = Split([], on_device=True)
    for step in steps:
        split.step_seconds.append(_add_step(split, kernels.get(step, []), parts.get(step)))
    path = output / _COMMUNICATION
    if path.is_file():
        _name_collectives(split, _calls_in(read_json_object(path, _MOST_JSON_BYTES)))
    else:
        _name_collectives(split, [call for step in steps for call in _collectives_of(kernels.get(step, []))])
    return split


def read_ascend_database(path: Path) -> Split:
    """The same as `read_ascend`, from ascend_pytorch_profiler_RANK.db; all totals are computed from its kernels.

    Raises:
        InputError: the file is not such a database, or it has no kernel.
    """
    split = Split([], on_device=True)
    calls = []
    for step in read_database(path):
        split.step_seconds.append(_add_step(split, step.kernels, None, step.microseconds))
        calls += _collectives_of(step.kernels)
    _name_collectives(split, calls)
    return split


def _add_step(
    split: Split, kernels: list[Interval], parts: dict[str, str] | None, step_microseconds: float | None = None
) -> float:
    """Add a step to `split` and return its seconds.

    If there are totals of the vendor, they are used; the kernels then only determine their division.

    Args:
        step_microseconds: duration of the step if there are no totals (default: from its first kernel to its last).
    """
    lanes: dict[str, list[Interval]] = defaultdict(list)
    for kernel in kernels:
        kind = kind_of_operator(kernel.label)
        split.note(kernel.label, kind, 1, kernel.seconds)
        lanes[kind if kind in ("collective", "copy") else "compute"].append(kernel)
    compute: dict[str, float] = defaultdict(float)
    for each in (computing := uncovered(sorted(lanes["compute"]))):
        compute[kind_of_operator(each.label)] += each.seconds
    exposed = uncovered(sorted(lanes["collective"]), union(computing))
    covered = merged(union(computing), union(exposed))
    copying = uncovered(sorted(lanes["copy"]), covered)
    computed, communicated, free = sum(compute.values()), _length(exposed), 0.0
    hidden = _length(uncovered(sorted(lanes["collective"]))) - communicated
    copied = _length(copying)
    if parts is not None:
        named = _seconds(parts, "Computing")
        # If kernels are missing, the rest has no kind.
        compute = _scaled(compute, named)
        computed, communicated = named, _seconds(parts, "Communication(Not Overlapped)")
        hidden, free = _seconds(parts, "Overlapped"), _seconds(parts, "Free")
        copied = min(copied, free)
        free -= copied
    elif kernels or step_microseconds:
        whole = step_microseconds or max(each.end for each in kernels) - min(each.start for each in kernels)
        free = max(0.0, whole * _MICRO - computed - communicated - copied)
    for kind, seconds in compute.items():
        split.compute[kind] += seconds
    split.communication["collectives"] += communicated
    split.hidden["collectives"] += hidden
    split.exposed_seconds.append(communicated)
    if copied:
        split.copies["copies of the device"] += copied
    split.gaps += free
    return computed + communicated + copied + free


def _scaled(values: dict[str, float], total: float) -> dict[str, float]:
    """Scale `values` so that their sum is `total`; without values all of it is "other"."""
    present = sum(values.values())
    return {kind: seconds * total / present for kind, seconds in values.items()} if present else {"other": total}


def _kernels(path: Path) -> dict[str, list[Interval]]:
    """The kernels of each step, labelled by type, in microseconds since the first one; key "" without steps."""
    by_step: dict[str, list[Interval]] = defaultdict(list)
    origin: Decimal | None = None
    for row in _rows(path):
        begin, length = (_NUMBER.fullmatch((row.get(key) or "").strip()) for key in ("Start Time(us)", "Duration(us)"))
        if begin is None or length is None:
            continue
        # A timestamp has 16 digits before the point: a float would round it to a quarter of a microsecond.
        start, duration = Decimal(begin[0]), float(length[0])
        origin = start if origin is None else origin
        since = float(start - origin)
        if max(abs(since), duration) < _LONGEST:
            # Some versions write N/A as the type.
            label = next((word for key in ("Type", "Name") if (word := row.get(key)) and word != "N/A"), "")
            by_step[row.get("Step Id") or ""].append(Interval(since, since + duration, label[:_LONGEST_NAME]))
    return dict(by_step)


def _collectives_of(kernels: list[Interval]) -> list[tuple[str, float]]:
    """Name and seconds of each collective in `kernels`."""
    return [(each.label, each.seconds) for each in kernels if kind_of_operator(each.label) == "collective"]


def _calls_in(content: dict[str, Any]) -> list[tuple[str, float]]:
    """Name and seconds of each collective, and of each exchange between two ranks, in communication.json."""
    calls = []
    for step in content.values():
        for group in _GROUPS:
            for name, facts in object_of(value_at(step, group)).items():
                seconds = _number(value_at(facts, "Communication Time Info", "Elapse Time(ms)")) * _MILLI
                if seconds and not name.lower().startswith("total"):
                    calls.append((name[:_LONGEST_NAME], seconds))
    return calls


def _name_collectives(split: Split, calls: list[tuple[str, float]]) -> None:
    """Divide the totals of communication among its kinds, in proportion to the elapsed times of the calls.

    Args:
        calls: name and seconds of each call.
    """
    elapsed: dict[str, float] = defaultdict(float)
    for name, seconds in calls:
        kind = kind_of_collective(name)
        elapsed[kind] += seconds
        split.collectives[kind].append(seconds)
    for table in (split.communication, split.hidden):
        if elapsed and (total := table.pop("collectives", 0.0)):
            table.update(_scaled(elapsed, total))


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """The lines of a table as dicts by header; empty if the file is missing.

    Raises:
        InputError: the file is not a table, or has too many lines.
    """
    if not path.is_file():
        return
    with open_foreign(path) as file:
        table = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline=""))
        try:
            for number, row in enumerate(table):
                if number >= MOST_EVENTS:
                    raise limit_error("lines", where=path)
                yield {key: value for key, value in row.items() if isinstance(key, str) and isinstance(value, str)}
        except csv.Error as error:
            raise InputError(
                f"{path.name} is not a table: {error}",
                code="invalid-trace",
                remedy="copy the folder again, or record the profile again",
                where=path,
            ) from error


def _seconds(row: dict[str, str], column: str) -> float:
    try:
        value = float(row.get(column) or 0.0)
    except ValueError:
        return 0.0
    return value * _MICRO if 0 <= value < _LONGEST else 0.0


def _number(value: Any) -> float:
    return float(value) if is_number(value, 0, _LONGEST) else 0.0


def _length(intervals: list[Interval]) -> float:
    return sum(each.seconds for each in intervals)
