"""All data sets of a recipe as conversations, with an account of every row."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from ascendtune.core.errors import DataError
from ascendtune.core.units import count_of
from ascendtune.data.conversation import BadRow, Conversation, Source
from ascendtune.data.format.choose import choose_format
from ascendtune.data.read import read_rows
from ascendtune.data.report import EXAMPLES_KEPT, DatasetReport
from ascendtune.data.spec import DatasetSpec

_ROWS_THAT_TELL_THE_FORMAT = 100

Resolve = Callable[[DatasetSpec], Path]


@dataclass
class Places:
    """Where rows stand, ten bytes each: looked up only for messages."""

    _sources: list[Source] = field(default_factory=list)
    _source_of: array[int] = field(default_factory=lambda: array("H"))
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
            self._sources, array("H", [source_of[index] for index in order]), array("Q", [numbers[i] for i in order])
        )


@dataclass
class Loaded:
    """The rows of one epoch. A row that its weight repeats is the same object each time."""

    conversations: list[Conversation]
    places: Places
    """`places[i]` is `file:line` of `conversations[i]`."""
    datasets: list[DatasetReport]


def load_conversations(
    specs: Sequence[DatasetSpec], *, seed: int, on_bad_row: Literal["fail", "skip"], resolve: Resolve
) -> Loaded:
    """Read, convert and weigh all data sets, in the order given.

    Args:
        seed: chooses the rows where a weight takes only a part of them.
        on_bad_row: stop after all rows were looked at, or leave bad rows out and count them.
        resolve: where a data set lies on this machine.

    Raises:
        DataError: unreadable files, columns that do not fit, bad rows with `fail`, no row left.
    """
    conversations: list[Conversation] = []
    places, reports = Places(), []
    for spec in specs:
        report = DatasetReport(path=spec.path, format=spec.format, weight=spec.weight)
        _convert_all(spec, resolve(spec), report, conversations, places)
        reports.append(report)
    _refuse_bad_rows(reports, on_bad_row)
    order = _weighted(reports, seed)
    if order != range(len(conversations)):
        conversations, places = [conversations[index] for index in order], places.taken(order)
    return Loaded(conversations, places, reports)


def _convert_all(
    spec: DatasetSpec, path: Path, report: DatasetReport, conversations: list[Conversation], places: Places
) -> None:
    rows = read_rows(spec, path)
    first_rows = list(islice(rows, _ROWS_THAT_TELL_THE_FORMAT))
    report.format, convert = choose_format(spec, first_rows)
    before = len(conversations)
    for row in chain(first_rows, rows):
        report.rows_read += 1
        made = convert(row.values)
        if isinstance(made, BadRow):
            # The place is costly and only examples show it.
            dropped = report.dropped.get(made.reason)
            shown = dropped is None or len(dropped.examples) < EXAMPLES_KEPT
            report.drop(made.reason, row.place if shown else "", made.detail)
            continue
        if spec.system and made.messages[0]["role"] != "system":
            made.messages.insert(0, {"role": "system", "content": spec.system})
        conversations.append(made)
        places.append(row.source, row.number)
    report.rows_kept = len(conversations) - before


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
        # A data set that was asked for is never weighed down to nothing.
        part = max(round((report.weight - whole) * len(rows)), 0 if whole or not rows else 1)
        taken = [*rows] * whole + sorted(random.Random(f"{seed}/{number}").sample(rows, part))
        report.rows_used = len(taken)
        order += taken
    return order


def _refuse_bad_rows(reports: Sequence[DatasetReport], on_bad_row: Literal["fail", "skip"]) -> None:
    dropped = [(reason, rows) for report in reports for reason, rows in report.dropped.items()]
    count, read = sum(rows.count for _, rows in dropped), sum(report.rows_read for report in reports)
    kept = sum(report.rows_kept for report in reports)
    if not count or (kept and on_bad_row == "skip"):
        return
    shown = [f"  {reason}: {example}" for reason, rows in dropped for example in rows.examples][:EXAMPLES_KEPT]
    more = [f"  and {count - len(shown):,} more"] if count > len(shown) else []
    if kept:
        what = f"{count:,} of {count_of(read, 'row')} cannot be trained on"
        remedy = "mend these rows, or leave them out with data.on_bad_row: skip"
    else:
        what = f"none of the {read:,} rows can be trained on" if read > 1 else "the only row cannot be trained on"
        remedy = "check the format and columns of the data set against the file"
    raise DataError("\n".join([what, *shown, *more]), remedy=remedy)


__all__ = ["Loaded", "Places", "load_conversations"]
