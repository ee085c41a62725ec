"""Converts all data sets of a recipe to rows in our forms, and counts every row."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from ascendtune.core.errors import DataError
from ascendtune.core.units import count_of
from ascendtune.data.conversation import BadRow, RawRow, Row, conversations_of
from ascendtune.data.format.choose import choose_format
from ascendtune.data.read import first_rows, read_rows
from ascendtune.data.report import EXAMPLES_KEPT, DatasetReport
from ascendtune.data.row_file import Numbers, RowFile, RowPlaces, Rows
from ascendtune.data.spec import DatasetSpec, Task

_ROWS_THAT_TELL_THE_FORMAT = 100

Resolve = Callable[[DatasetSpec], Path]


@dataclass
class LoadedRows:
    """The rows of one epoch, in a file; copies of a row that its weight repeats have the same number."""

    rows: Rows
    """All of one kind: conversations, texts, pairs or singles (`Row`)."""
    datasets: list[DatasetReport]
    sizes: list[int]
    """Number of rows of each data set; `rows` has them in the order of the data sets."""

    @property
    def places(self) -> RowPlaces:
        """`places[i]` is `file:line` of `rows[i]`."""
        return RowPlaces(self.rows)

    def close(self) -> None:
        """Release the disk space; rows can no longer be read."""
        self.rows.close()


def load_rows(
    specs: Sequence[DatasetSpec],
    task: Task,
    *,
    seed: int,
    on_bad_row: Literal["fail", "skip"],
    resolve: Resolve,
    directory: Path | None = None,
) -> LoadedRows:
    """Read, convert and weigh all data sets, in their order.

    Args:
        seed: for the choice of rows if a weight uses only a part of them.
        on_bad_row: stop after all rows were checked, or skip bad rows and count them.
        resolve: returns the location of a data set on this machine.
        directory: where the rows are stored, in an unnamed file; default is the directory of temporary files.

    Raises:
        DataError: unreadable files, columns that do not match, bad rows with `fail`, or no row left.
    """
    rows, reports, first_bad = RowFile(directory), list[DatasetReport](), list[str]()
    try:
        for spec in specs:
            reports.append(_convert_all(spec, resolve(spec), task, rows, first_bad))
        rows.complete()
        _refuse_bad_rows(reports, first_bad, on_bad_row)
        weighted = Rows(rows, _weighted(reports, seed))
        return LoadedRows(weighted, reports, [each.rows_used for each in reports])
    except BaseException:
        rows.close()
        raise


def format_of(spec: DatasetSpec, path: Path, task: Task) -> str:
    """The name of a data set's format, determined by its first rows.

    Args:
        path: the location of the data set.

    Raises:
        DataError: unreadable, or not suitable for `task`.
    """
    return converted_rows(spec, path, task)[0]


def converted_rows(spec: DatasetSpec, path: Path, task: Task) -> tuple[str, Iterator[tuple[RawRow, Row | BadRow]]]:
    """The name of a data set's format, and every row with its converted form.

    Raises:
        DataError: unreadable, now or at a later row; or not suitable for `task`.
    """
    rows = read_rows(spec, path)
    beginning = first_rows(rows, _ROWS_THAT_TELL_THE_FORMAT)
    name, convert = choose_format(spec, beginning, task)

    def converted() -> Iterator[tuple[RawRow, Row | BadRow]]:
        for row in chain(beginning, rows):
            converted = row.fault or convert(row.values)
            if spec.system and not isinstance(converted, BadRow):
                _add_system_message(converted, spec.system)
            yield row, converted

    return name, converted()


def _convert_all(spec: DatasetSpec, path: Path, task: Task, kept: RowFile, first_bad: list[str]) -> DatasetReport:
    name, rows = converted_rows(spec, path, task)
    report = DatasetReport(path=spec.path, format=name, weight=spec.weight)
    before = len(kept)
    for row, converted in rows:
        report.rows_read += 1
        if isinstance(converted, BadRow):
            _count(row, converted, report, first_bad)
        else:
            kept.append(converted, row.source, row.number)
    report.rows_kept = len(kept) - before
    return report


def _add_system_message(row: Row, text: str) -> None:
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


def _weighted(reports: Sequence[DatasetReport], seed: int) -> Numbers | None:
    """Numbers of the rows of one epoch: whole copies of a data set, then the part that the weight's fraction takes.

    Returns:
        (rows,) int32; None if every row occurs once.
    """
    if all(report.weight == 1 for report in reports):
        for report in reports:
            report.rows_used = report.rows_kept
        return None
    order: list[Numbers] = []
    start = 0
    for number, report in enumerate(reports):
        rows = range(start, start + report.rows_kept)
        start += report.rows_kept
        whole = int(report.weight)
        # A data set keeps at least one row, however small its weight is.
        part = max(round((report.weight - whole) * len(rows)), 0 if whole or not rows else 1)
        chosen = sorted(random.Random(f"{seed}/{number}").sample(rows, part))
        order += [*[np.arange(rows.start, rows.stop, dtype=np.int32)] * whole, np.array(chosen, np.int32)]
        report.rows_used = len(rows) * whole + part
    return np.concatenate(order)


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
