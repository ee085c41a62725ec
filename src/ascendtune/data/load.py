"""All data sets of a recipe as rows in our forms, and a count of every row."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from ascendtune.core.errors import DataError
from ascendtune.core.units import count_of
from ascendtune.data.conversation import BadRow, RawRow, Row, Source, conversations_of
from ascendtune.data.format.choose import choose_format
from ascendtune.data.read import read_rows
from ascendtune.data.report import EXAMPLES_KEPT, DatasetReport
from ascendtune.data.spec import DatasetSpec, Task

_ROWS_THAT_TELL_THE_FORMAT = 100

Resolve = Callable[[DatasetSpec], Path]


@dataclass
class Places:
    """The place of every row, 12 bytes each; looked up only for messages."""

    _sources: list[Source] = field(default_factory=list)
    _source_of: array[int] = field(default_factory=lambda: array("I"))
    _numbers: array[int] = field(default_factory=lambda: array("Q"))

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> str:
        return self._sources[self._source_of[index]].place(self._numbers[index])

    def append(self, source: Source, number: int) -> None:
        if not self._sources or self._sources[-1] is not source:
            self._sources.append(source)
        self._source_of.append(len(self._sources) - 1)
        self._numbers.append(number)

    def taken(self, order: Sequence[int]) -> Places:
        """The places of the rows `order`, in that order."""
        source_of, numbers = self._source_of, self._numbers
        return Places(
            self._sources, array("I", [source_of[index] for index in order]), array("Q", [numbers[i] for i in order])
        )


@dataclass
class Loaded:
    """The rows of one epoch. A row that is repeated by its weight is the same object each time."""

    rows: list[Any]
    """All of one kind: conversations, texts, pairs or singles (`Row`)."""
    places: Places
    """`places[i]` is `file:line` of `rows[i]`."""
    datasets: list[DatasetReport]


def load_rows(
    specs: Sequence[DatasetSpec], task: Task, *, seed: int, on_bad_row: Literal["fail", "skip"], resolve: Resolve
) -> Loaded:
    """Read, convert and weigh all data sets, in the order given.

    Args:
        seed: chooses the rows where a weight takes only a part of them.
        on_bad_row: stop after all rows were checked, or skip bad rows and count them.
        resolve: where a data set lies on this machine.

    Raises:
        DataError: unreadable files, columns that do not fit, bad rows with `fail`, no row left.
    """
    loaded, first_bad = Loaded([], Places(), []), list[str]()
    for spec in specs:
        _convert_all(spec, resolve(spec), task, loaded, first_bad)
    _refuse_bad_rows(loaded.datasets, first_bad, on_bad_row)
    order = _weighted(loaded.datasets, seed)
    if order != range(len(loaded.rows)):
        loaded.rows = [loaded.rows[index] for index in order]
        loaded.places = loaded.places.taken(order)
    return loaded


def format_of(spec: DatasetSpec, path: Path, task: Task) -> str:
    """The name of a data set's format, as its first rows tell it.

    Args:
        path: where the data set lies.

    Raises:
        DataError: unreadable, or nothing for `task`.
    """
    return choose_format(spec, list(islice(read_rows(spec, path), _ROWS_THAT_TELL_THE_FORMAT)), task)[0]


def _convert_all(spec: DatasetSpec, path: Path, task: Task, loaded: Loaded, first_bad: list[str]) -> None:
    rows = read_rows(spec, path)
    first_rows = list(islice(rows, _ROWS_THAT_TELL_THE_FORMAT))
    name, convert = choose_format(spec, first_rows, task)
    report = DatasetReport(path=spec.path, format=name, weight=spec.weight)
    loaded.datasets.append(report)
    kept, places, before = loaded.rows, loaded.places, len(loaded.rows)
    for row in chain(first_rows, rows):
        report.rows_read += 1
        made = row.fault or convert(row.values)
        if isinstance(made, BadRow):
            _count(row, made, report, first_bad)
            continue
        if spec.system:
            add_system_message(made, spec.system)
        kept.append(made)
        places.append(row.source, row.number)
    report.rows_kept = len(kept) - before


def add_system_message(row: Row, text: str) -> None:
    for conversation in conversations_of(row):
        if conversation.messages[0]["role"] != "system":
            conversation.messages.insert(0, {"role": "system", "content": text})


def _count(row: RawRow, bad: BadRow, report: DatasetReport, first_bad: list[str]) -> None:
    # Finding a place is expensive: only for rows that will be shown.
    dropped = report.dropped.get(bad.reason)
    is_example = dropped is None or len(dropped.examples) < EXAMPLES_KEPT
    place = row.place if is_example or len(first_bad) < EXAMPLES_KEPT else ""
    report.drop(bad.reason, place, bad.detail)
    if len(first_bad) < EXAMPLES_KEPT:
        first_bad.append(f"{place}: {bad.reason}" + (f" ({bad.detail})" if bad.detail else ""))


def _weighted(reports: Sequence[DatasetReport], seed: int) -> Sequence[int]:
    """Indices of the rows of one epoch: whole copies of a data set, then the part that the weight's fraction takes."""
    if all(report.weight == 1 for report in reports):
        for report in reports:
            report.rows_used = report.rows_kept
        return range(sum(report.rows_kept for report in reports))
    order: list[int] = []
    start = 0
    for number, report in enumerate(reports):
        rows = range(start, start + report.rows_kept)
        start += report.rows_kept
        whole = int(report.weight)
        # A data set keeps at least one row, however small its weight.
        part = max(round((report.weight - whole) * len(rows)), 0 if whole or not rows else 1)
        taken = [*rows] * whole + sorted(random.Random(f"{seed}/{number}").sample(rows, part))
        report.rows_used = len(taken)
        order += taken
    return order


def _refuse_bad_rows(
    reports: Sequence[DatasetReport], first_bad: Sequence[str], on_bad_row: Literal["fail", "skip"]
) -> None:
    read, kept = sum(report.rows_read for report in reports), sum(report.rows_kept for report in reports)
    bad = read - kept
    if not bad or (kept and on_bad_row == "skip"):
        return
    if kept:
        what = f"{bad:,} of {count_of(read, 'row')} cannot be trained on"
        remedy = "correct these rows, or leave them out with data.on_bad_row: skip"
    else:
        what = f"none of the {read:,} rows can be trained on" if read > 1 else "the only row cannot be trained on"
        remedy = "check `format` and `columns` of the data set"
    more = [f"  and {bad - len(first_bad):,} more"] if bad > len(first_bad) else []
    raise DataError("\n".join([what, *(f"  {each}" for each in first_bad), *more]), code="bad-rows", remedy=remedy)
