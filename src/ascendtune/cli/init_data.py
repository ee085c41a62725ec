"""Determines the use of a data set, from its columns and first rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ascendtune.core.errors import DataError
from ascendtune.core.units import count_of
from ascendtune.data.conversation import BadRow, RawRow, Row
from ascendtune.data.encoding import Encoding, certain_encoding
from ascendtune.data.files import data_files, data_suffix, opened
from ascendtune.data.format.choose import FORMATS, Convert, choose_format, main_task_of
from ascendtune.data.format.guess import Guess, guess, names_columns
from ascendtune.data.read import first_rows, read_rows
from ascendtune.data.spec import DatasetSpec, Task
from ascendtune.data.table_rows import delimiter_of
from ascendtune.hub.download import fetch_dataset

_ROWS_LOOKED_AT = 200
_TASKS_OF_STAGE: dict[str, tuple[Task, ...]] = {
    "sft": ("conversations",),
    "pretrain": ("text",),
    "preference": ("pairs", "singles"),
    "reward": ("pairs",),
}
STAGES = tuple(_TASKS_OF_STAGE)
_PLAIN: dict[Task, tuple[str, tuple[str, ...]]] = {
    "conversations": ("prompt_completion", ("prompt", "completion")),
    "text": ("text", ("text",)),
    "pairs": ("preference", ("prompt", "chosen", "rejected")),
    "singles": ("unpaired", ("prompt", "completion", "label")),
}
"""Task -> the format for rows whose format is unclear, and its columns."""
_ROWS_SHOWN = 2
_COLUMNS_SHOWN = 40
_COLUMNS_NAMED = 8
_LONGEST_WORDS = 40
"""Most characters of a value such as a category."""
_THOUGHT = re.compile(r"(?i)(?<![a-z])(cot|think|thinking|thought|thoughts|reasoning|rationale)(?![a-z])|思[考维]|推理")
_LONGEST_VALUE = 70
_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}


@dataclass(frozen=True)
class DataFacts:
    """Facts from the first rows of one data set."""

    path: str
    task: Task
    """The task that the rows are for."""
    format: str
    columns: dict[str, str]
    """Name in the format -> column, if they differ; a proposal if `is_undecided`."""
    found: list[str]
    """The file's columns."""
    raw: list[RawRow]
    """The rows as read."""
    rows: list[Row]
    """Rows that can be trained on; none if `is_undecided`."""
    bad: list[str]
    """Place and reason of each bad row."""
    needs_format: bool = False
    """Whether the columns do not suffice to determine the format."""
    is_undecided: bool = False
    """Whether the columns are guesses that names and values do not confirm."""
    reading: dict[str, Any] = field(default_factory=dict)
    """Keys of the data set for reading its files, `encoding` and `header`, if they are not the default."""

    @property
    def undecided_columns(self) -> tuple[str, ...]:
        """Names in the format whose columns the user must choose."""
        return tuple(self.columns) or _PLAIN[self.task][1]


def inspect_data(
    path: str,
    *,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    stage: str | None = None,
    encoding: str | None = None,
) -> DataFacts:
    """Read the first rows.

    Args:
        format: as `format` of a data set in a recipe; None detects it.
        columns: name in the format -> column; if some are given, nothing is guessed.
        stage: as method.stage; None uses the first that matches.
        encoding: as `encoding` of a data set; None uses UTF-8, or another one that is certain.

    Raises:
        DataError: the data does not exist, is unreadable, matches no given format, or has no row that can be trained
            on.
    """
    reading, raw = _first_rows(path, encoding)
    found = list(dict.fromkeys(column for row in raw for column in row.values))
    given = {**(columns or {})}
    spec = DatasetSpec.model_validate({"path": path, "columns": given, "format": format or "auto"})
    tasks: tuple[Task, ...] = _TASKS_OF_STAGE[stage] if stage else ("conversations", "pairs", "singles")
    blank = DataFacts(
        path, tasks[0], format or _PLAIN[tasks[0]][0], given, found, raw, [], [], format is not None, reading=reading
    )
    refusals: list[DataError] = []
    for task in tasks:
        try:
            name, convert = choose_format(spec, raw, task)
        except DataError as error:
            refusals.append(error)
            continue
        if name == "text" and not stage:
            # Texts also fit as answers without a question; they are for pretraining.
            task, (name, convert) = "text", choose_format(spec, raw, "text")
        facts = replace(blank, task=task, format=name)
        return _converted(facts, convert) if columns or format else _converted_or_guessed(facts, convert)
    if columns or format:
        # For a given format the refusal for its own task, not that it is not for conversations.
        main_task = main_task_of(format) if format in FORMATS else tasks[0]
        raise dict(zip(tasks, refusals, strict=True)).get(main_task, refusals[0])
    likely = guess([row.values for row in raw])
    if likely is None or (stage and likely.task not in tasks):
        return replace(blank, is_undecided=True)
    return _of_guess(blank, likely)


def _converted_or_guessed(facts: DataFacts, convert: Convert) -> DataFacts:
    try:
        return _converted(facts, convert)
    except DataError:
        # The question may be in a column of another name. No other column replaces one that exists but is empty.
        likely = guess([row.values for row in facts.raw])
        if likely is None or (likely.task, likely.format) != (facts.task, facts.format):
            raise
        if likely.columns.keys() <= {*facts.found}:
            raise
        return _of_guess(facts, likely)


def _of_guess(blank: DataFacts, likely: Guess) -> DataFacts:
    renamed = {word: column for word, column in likely.columns.items() if word != column}
    facts = replace(blank, task=likely.task, format=likely.format, columns=renamed)
    if not likely.certain:
        return replace(facts, columns=likely.columns, is_undecided=True)
    return decided(facts, renamed)


def _first_rows(path: str, encoding: str | None) -> tuple[dict[str, Any], list[RawRow]]:
    """Options for reading the files (`DataFacts.reading`), and the first rows.

    Raises:
        DataError: unreadable, or text that is neither UTF-8 nor certainly in another encoding.
    """
    place = fetch_dataset(path)
    reading: dict[str, Any] = {"encoding": encoding} if encoding else {}

    def read(**more: Any) -> list[RawRow]:
        reading.update(more)
        try:
            return first_rows(read_rows(DatasetSpec(path=path, **reading), place), _ROWS_LOOKED_AT)
        except DataError as error:
            if error.code != "invalid-csv-header":
                raise
            rows = read(header=False)
            if _begins_with_names(rows):
                raise
            return rows

    try:
        rows = read()
    except DataError as error:
        if error.code == "not-utf8" and (certain := _encoding_of(path, place)):
            rows = read(encoding=certain)
        else:
            raise
    if data_suffix(rows[0].source.path) in (".csv", ".tsv") and not names_columns([row.values for row in rows]):
        rows = read(header=False)
    return reading, rows


def _begins_with_names(rows: Sequence[RawRow]) -> bool:
    """Whether the first row, read without a header, has names of columns all the same, two of them equal."""
    names = [*map(str, rows[0].values.values())]
    below = [dict(zip(names, row.values.values(), strict=True)) for row in rows[1:]]
    return any(map(str.strip, names)) and bool(below) and names_columns(below)


def _encoding_of(path: str, place: Path) -> str | None:
    for file in data_files(DatasetSpec(path=path), place):
        with opened(file) as content:
            if encoding := certain_encoding(content):
                return encoding
    return None


def decided(facts: DataFacts, columns: Mapping[str, str]) -> DataFacts:
    """The facts with these columns.

    Args:
        columns: name in the format -> column.

    Raises:
        DataError: no such column, or no row that can be trained on.
    """
    renamed = {word: column for word, column in columns.items() if word != column}
    spec = DatasetSpec.model_validate({"path": facts.path, "columns": renamed, "format": facts.format})
    name, convert = choose_format(spec, facts.raw, facts.task)
    try:
        choose_format(spec.model_copy(update={"format": "auto"}), facts.raw, facts.task)
        needs_format = facts.needs_format
    except DataError:
        needs_format = True
    return _converted(
        replace(facts, format=name, columns=renamed, needs_format=needs_format, is_undecided=False), convert
    )


def _converted(facts: DataFacts, convert: Convert) -> DataFacts:
    converted: list[Any] = [row.fault or convert(row.values) for row in facts.raw]
    good = [each for each in converted if not isinstance(each, BadRow)]
    bad = [
        f"{row.place}: {each.reason}" + (f" ({each.detail})" if each.detail else "")
        for row, each in zip(facts.raw, converted, strict=True)
        if isinstance(each, BadRow)
    ]
    if not good:
        raise DataError(
            f"none of the first {count_of(len(facts.raw), 'row')} can be trained on: "
            f"{bad[0].removeprefix(f'{facts.path}:')}",
            code="no-usable-rows",
            remedy="fix the rows; docs/data.md shows a row of each format",
            where=facts.path,
        )
    return replace(facts, rows=good, bad=bad)


def preview(facts: DataFacts) -> list[str]:
    """Lines that show the first rows as read, and the use of each column."""
    words = {column: word for word, column in facts.columns.items()}
    size = max(map(len, facts.found), default=0)
    delimiter = _delimiter(facts.raw[0].source.path, facts.reading.get("encoding", "auto"))
    lines = [f"{facts.path}: {count_of(len(facts.found), 'column')}{delimiter}{_reading_notes(facts.reading)}"]
    for number, row in enumerate(facts.raw[:_ROWS_SHOWN], 1):
        lines.append(f"  row {number}")
        shown = facts.found[:_COLUMNS_SHOWN]
        lines += [f"    {column.ljust(min(size, 24))}  {_short(row.values.get(column))}" for column in shown]
        if len(facts.found) > _COLUMNS_SHOWN:
            lines.append(f"    and {count_of(len(facts.found) - _COLUMNS_SHOWN, 'more column')}")
    roles = ", ".join(f"{word} = {column}" for column, word in words.items())
    state = " (a guess)" if facts.is_undecided else ""
    lines.append(f"  format {facts.format}{': ' if roles else ''}{roles}{state}")
    known = import_module(FORMATS[facts.format]).WORDS
    named = (*facts.columns.values(), *facts.columns, *known, "chat_template_kwargs")
    # A column, or a path inside one.
    read = {*named, *(name.partition(".")[0] for name in named)}
    ignored = [column for column in facts.found if column not in read]
    if ignored and not facts.is_undecided:
        more = ", …" if len(ignored) > _COLUMNS_NAMED else ""
        lines.append(f"  not read: {', '.join(ignored[:_COLUMNS_NAMED])}{more}")
        likely = filter(_THOUGHT.search, ignored if "reasoning_content" in known else ())
        if thought := next((column for column in likely if _has_long_text(facts.raw, column)), None):
            lines.append(
                f"  if {thought} is the thought before the answer, add reasoning_content: {thought} to `columns`"
            )
    return lines


def _has_long_text(rows: Sequence[RawRow], column: str) -> bool:
    values = [row.values.get(column) for row in rows]
    return any(isinstance(value, str) and len(value) > _LONGEST_WORDS for value in values)


def _reading_notes(reading: Mapping[str, Any]) -> str:
    encoding = f"; it is not UTF-8 and is read as {reading['encoding']}" if "encoding" in reading else ""
    return encoding + ("; its first line is a row, not names of columns" if "header" in reading else "")


def _delimiter(file: Path, encoding: Encoding) -> str:
    """The separator of a CSV file's columns, if it is not a comma."""
    delimiter = delimiter_of(file, encoding) if data_suffix(file) == ".csv" else ","
    return "" if delimiter == "," else f", separated by {_DELIMITERS[delimiter]}"


def _short(value: Any) -> str:
    # Four times as much: white space is joined.
    text = " ".join(value.lstrip()[: 4 * _LONGEST_VALUE].split()) if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def columns_of(words: Sequence[str]) -> dict[str, str]:
    """Parse `prompt=Frage` words of the command line.

    Raises:
        DataError: a word without `=`.
    """
    pairs = [word.partition("=") for word in words]
    for word, equals, column in pairs:
        if not (word and equals and column):
            raise DataError(
                f"--columns: '{word}{equals}{column}' does not name a column",
                code="invalid-option-value",
                remedy="write it as FIELD=COLUMN, e.g. prompt=Frage; repeat the option for each column",
            )
    return {word.strip(): column for word, _, column in pairs}
