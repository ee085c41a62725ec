"""Reads the database of torch_npu's profiler, ascend_pytorch_profiler_RANK.db.

Its tables, some of which are read, are described in "Data in ascend_pytorch_profiler_{Rank_ID}.db", CANN 8.5 to 9.1,
https://www.hiascend.com/document/detail/en/canncommercial/850/devaids/profiling/atlasprofiling_16_1145.html;
STEP_TIME as written by torch_npu 2.13. Times are nanoseconds; a name is a number in the table STRING_IDS.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from ascendtune.check.profile.intervals import Interval
from ascendtune.check.profile.trace import MOST_EVENTS, limit_error
from ascendtune.core.errors import InputError
from ascendtune.core.foreign_json import open_foreign

DATABASES = "ascend_pytorch_profiler*.db"
_MOST_INSTRUCTIONS = 20_000_000_000
"""Instructions of SQLite's virtual machine, some minutes: a malicious database could make a query run forever."""
_INSTRUCTIONS_BETWEEN = 1_000_000
_LONGEST_TEXT = 1 << 20
_LONGEST_NAME = 300
_NANOSECONDS = 1e-3
"""A nanosecond in microseconds."""
_LONGEST = 1e12
"""Longer than any step, in microseconds."""
# Queries, each with the tables that it needs.
_KERNELS = (
    ("COMPUTE_TASK_INFO", "TASK", "STRING_IDS"),
    "SELECT task.startNs, task.endNs, "
    "CASE WHEN info.opType IN (SELECT id FROM STRING_IDS WHERE value = 'N/A') THEN info.name ELSE info.opType END "
    "FROM COMPUTE_TASK_INFO AS info "
    "JOIN TASK AS task ON task.globalTaskId = info.globalTaskId",
)
_COPIES = (
    ("TASK", "STRING_IDS"),
    "SELECT startNs, endNs, taskType FROM TASK "
    "WHERE taskType IN (SELECT id FROM STRING_IDS WHERE value = 'MEMCPY_ASYNC')",
)
_COLLECTIVES = (("COMMUNICATION_OP",), "SELECT startNs, endNs, opName FROM COMMUNICATION_OP")
_STEPS = (("STEP_TIME",), "SELECT id, startNs, endNs FROM STEP_TIME ORDER BY startNs")


class RecordedStep(NamedTuple):
    """A step in the database."""

    kernels: list[Interval]
    """Kernels, copies and collectives, ordered by their start on the device, labelled by type or name."""
    microseconds: float | None
    """From one step to the next on the host; None if the database has no steps."""


def read_database(path: Path) -> list[RecordedStep]:
    """The steps of a rank, in order; if the database has no steps, one with all kernels.

    A kernel belongs to the step in which it begins on the device; kernels outside all steps to the first or last one.

    Raises:
        InputError: the file is not such a database, is too large, or is made to run forever.
        RecipeError: the file is not a regular file, or cannot be read.
    """
    try:
        # Opened by its descriptor: SQLite would wait for the writer of a pipe.
        with open_foreign(path) as file:
            place = f"file:/proc/self/fd/{file.fileno()}?mode=ro&immutable=1"
            with closing(sqlite3.connect(place, uri=True)) as database:
                return _read(database, path)
    except (sqlite3.Error, OverflowError) as error:
        raise _invalid(path, str(error)) from error


def _read(database: sqlite3.Connection, path: Path) -> list[RecordedStep]:
    # The file may be malicious: its schema must not call functions, and no query may run forever.
    database.execute("PRAGMA trusted_schema = OFF")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT)
    remaining = iter(range(_MOST_INSTRUCTIONS // _INSTRUCTIONS_BETWEEN))
    database.set_progress_handler(lambda: next(remaining, None) is None, _INSTRUCTIONS_BETWEEN)
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"TASK", "COMMUNICATION_OP"} & tables:
        raise _invalid(path, "it has neither the table TASK nor COMMUNICATION_OP")
    rows = [
        each
        for needed, query in (_KERNELS, _COPIES, _COLLECTIVES)
        if tables.issuperset(needed)
        for each in _rows(database, query, path)
    ]
    if not rows:
        raise InputError(
            "the database has no kernel",
            code="no-profile",
            remedy="record again with torch_npu.profiler.ProfilerActivity.NPU",
            where=path,
        )
    origin = min(start for start, _, _ in rows)
    names = _names(database, {name for _, _, name in rows}) if "STRING_IDS" in tables else {}
    kernels = sorted(
        Interval((start - origin) * _NANOSECONDS, (end - origin) * _NANOSECONDS, names.get(name, "")[:_LONGEST_NAME])
        for start, end, name in rows
    )
    if kernels[-1].start > _LONGEST or max(each.end - each.start for each in kernels) > _LONGEST:
        raise _invalid(path, "its timestamps are too far apart for steps of a training")
    steps = list(_rows(database, _STEPS[1], path)) if "STEP_TIME" in tables else []
    if not steps:
        return [RecordedStep(kernels, None)]
    recorded = [RecordedStep([], (end - begin) * _NANOSECONDS) for _, begin, end in steps]
    # Without the first step: kernels that begin before all steps belong to it.
    begins = [(begin - origin) * _NANOSECONDS for _, begin, _ in steps[1:]]
    for kernel in kernels:
        recorded[bisect_right(begins, kernel.start)].kernels.append(kernel)
    return recorded


def _rows(database: sqlite3.Connection, query: str, path: Path) -> Iterator[tuple[int, int, int]]:
    for number, row in enumerate(database.execute(query)):
        if number >= MOST_EVENTS:
            raise limit_error("lines in a table", where=path)
        first, second, third = row
        if not all(isinstance(each, int) for each in row) or (query != _STEPS[1] and second < first):
            continue
        if query == _STEPS[1] and not 0 < third - second < _LONGEST / _NANOSECONDS:
            continue
        yield first, second, third


def _names(database: sqlite3.Connection, numbers: set[Any]) -> dict[int, str]:
    """The texts with these numbers."""
    names = {}
    for number in numbers:
        row = database.execute("SELECT value FROM STRING_IDS WHERE id = ?", (number,)).fetchone()
        if row and isinstance(row[0], str):
            names[number] = row[0]
    return names


def _invalid(path: Path, why: str) -> InputError:
    return InputError(
        f"not a database of torch_npu's profiler: {why}",
        code="invalid-trace",
        remedy="give the folder …_ascend_pt, or record the profile again",
        where=path,
    )
