"""Chooses the format of a data set, by its columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from ascendtune.core.errors import DataError
from ascendtune.core.suggest import did_you_mean
from ascendtune.data.conversation import BadRow, RawRow, conversations_of, with_options
from ascendtune.data.format import scored, text, unpaired
from ascendtune.data.format.guess import guess
from ascendtune.data.format.mapping import available, has_column, translated
from ascendtune.data.format.turns import template_options
from ascendtune.data.spec import DatasetSpec, Task

Convert = Callable[[Mapping[str, Any]], Any]
"""Converts a row to the `Conversation`, `Text`, `PreferencePair` or `UnpairedPreference`; raises `BadRow`."""

# A format is a module with
#   TASKS             the tasks (`data.spec.Task`) that its rows serve, its main one last
#   WORDS             its column names: the keys of `columns` of a data set
#   matches(columns)  whether a data set with these columns has this format
#   convert(row)      the row as a Conversation, PreferencePair or UnpairedPreference; raises BadRow
# `data.spec.DatasetSpec.format` lists the same names. `format: auto` needs exactly one match; `text`, a column that
# data of any format may also have, counts only if no other format matches.
FORMATS = {
    "alpaca": "ascendtune.data.format.alpaca",
    "sharegpt": "ascendtune.data.format.sharegpt",
    "messages": "ascendtune.data.format.messages",
    "prompt_completion": "ascendtune.data.format.prompt_completion",
    "text": "ascendtune.data.format.text",
    "preference": "ascendtune.data.format.preference",
    "scored": "ascendtune.data.format.scored",
    "unpaired": "ascendtune.data.format.unpaired",
}


@dataclass(frozen=True)
class _Need:
    """The requirements of a task, as words for messages."""

    stage: str
    rows: str
    format: str
    """An example, with the column names that are required."""
    words: tuple[str, ...]


_NEEDS: dict[Task, _Need] = {
    "conversations": _Need("method.stage: sft", "conversations", "prompt_completion", ("prompt", "completion")),
    "text": _Need("method.stage: pretrain", "text", "text", ("text",)),
    "pairs": _Need(
        "method.stage: preference (or reward)", "pairs of answers", "preference", ("prompt", "chosen", "rejected")
    ),
    "singles": _Need(
        "method.preference.loss: kto", "answers with a label", "unpaired", ("prompt", "completion", "label")
    ),
}


def choose_format(spec: DatasetSpec, rows: Sequence[RawRow], task: Task = "conversations") -> tuple[str, Convert]:
    """The name of the format, and the function that converts its rows, with `spec.columns` applied; for a bad row it
    returns the BadRow.

    Args:
        rows: the first rows, at least one; their columns are taken as those of the whole data set.
        task: the task for which the rows are needed.

    Raises:
        DataError: no format or several match the columns, they are for another task, or `spec.columns` has unknown
            names or columns.
    """
    columns = list(dict.fromkeys(column for row in rows for column in row.values))
    complaint = _format_of_another_task(spec.format, task) or _wrong_mapping(spec, columns, task)
    if not complaint:
        fitting = _fitting(spec, rows, columns, task)
        of_task = _of_task(fitting, task)
        name = spec.format if spec.format != "auto" else of_task[0] if len(of_task) == 1 else None
        if name and name in fitting:
            if task == "text":
                return name, returning_bad_rows(translated(text.convert_to_text, spec))
            convert = _refusing_media(translated(_module(name).convert, spec))
            return name, returning_bad_rows(_with_template_options(convert))
        elsewhere = fitting and not of_task and not name
        complaint = _file_of_another_task(fitting[-1], task, columns) if elsewhere else None
        complaint = complaint or _unfit(name, columns, of_task, task, rows)
    what, remedy = complaint
    raise DataError(what, code="data-format-mismatch", remedy=remedy, where=rows[0].place)


def returning_bad_rows(convert: Convert) -> Convert:
    """`convert`, but returning the `BadRow` that it would raise."""

    def converted(row: Mapping[str, Any]) -> Any:
        try:
            return convert(row)
        except BadRow as bad:
            # A traceback would keep the row in memory.
            return bad.with_traceback(None)

    return converted


_MEDIA = ("image", "video", "audio")
"""Such columns, or their plurals, occur beside texts with `<image>` (LLaVA, LLaMA-Factory) or without (TRL)."""


def _refusing_media(convert: Convert) -> Convert:
    """`convert`, but rows with pictures are bad rows: their answers would be trained on without the picture."""

    def of_text(row: Mapping[str, Any]) -> Any:
        result = convert(row)
        for name in _MEDIA:
            column = f"{name}s" if row.get(f"{name}s") else name
            if not row.get(column):
                continue
            contents = [each["content"] for conversation in conversations_of(result) for each in conversation.messages]
            # A text may be a link that the answer mentions; a list of files or a picture itself may not.
            if isinstance(row[column], list | dict) or any(f"<{name}>" in content for content in contents):
                raise BadRow("not only text", f"the column {column} contains {name}s; only text is supported")
        return result

    return of_text


def _with_template_options(convert: Convert) -> Convert:
    """`convert`, with the row's `chat_template_kwargs` as variables of the template."""

    def with_options_of_row(row: Mapping[str, Any]) -> Any:
        result, options = convert(row), template_options(row)
        return result if options is None else with_options(result, options)

    return with_options_of_row


def main_task_of(name: str) -> Task:
    """The main task of rows in the format `name`."""
    task: Task = _module(name).TASKS[-1]
    return task


def _fitting(spec: DatasetSpec, rows: Sequence[RawRow], columns: Sequence[str], task: Task) -> list[str]:
    """The formats that match the columns, those for preferences last."""
    words = available(spec, columns)
    fitting = [name for name in FORMATS if _module(name).matches(words)]
    if task != "singles" and "unpaired" in fitting and not unpaired.are_marked([row.values for row in rows]):
        # Conversations may have labels of any kind.
        fitting.remove("unpaired")
    column = spec.columns.get("completions", "completions") or ""
    if (
        spec.format == "auto"
        and "scored" in fitting
        and not any(scored.is_scored(row.values.get(column)) for row in rows)
    ):
        fitting.remove("scored")
    if len(fitting) > 1 and "text" in fitting:
        fitting.remove("text")
    if "text" in (spec.format, task) and "text" in words and "text" not in fitting:
        fitting.append("text")
    return fitting


def _of_task(fitting: Sequence[str], task: Task) -> list[str]:
    """The formats for `task`. Preference columns are not conversations: half of their answers must not be trained
    on."""
    if task == "conversations" and not {"preference", "scored", "unpaired"}.isdisjoint(fitting):
        return []
    return [name for name in fitting if task in _module(name).TASKS]


def _format_of_another_task(name: str, task: Task) -> tuple[str, str] | None:
    if name == "auto" or task in (given := _module(name).TASKS):
        return None
    need, offered = _NEEDS[task], _NEEDS[given[-1]]
    what = f"{need.stage} needs {need.rows}; the format {name} is for {offered.rows}"
    return what, f"use {offered.stage}, or format: {need.format}"


def _file_of_another_task(name: str, task: Task, columns: Sequence[str]) -> tuple[str, str]:
    need, offered = _NEEDS[task], _NEEDS[_module(name).TASKS[-1]]
    what = f"{need.stage} needs {need.rows}; this file has {offered.rows} (columns {', '.join(columns)})"
    return what, f"use {offered.stage}, or {_mapping_remedy(need.format, need.words, [])}"


def _unfit(
    name: str | None, columns: Sequence[str], fitting: Sequence[str], task: Task, rows: Sequence[RawRow]
) -> tuple[str, str]:
    """Problem and remedy, if the columns do not determine one format or lack some of format `name`."""
    shown = ", ".join(columns) or "(none)"
    need = _NEEDS[task]
    if name:
        needed = _required(_module(name)) or list(need.words)
        what = (
            f"the format {name} needs the column{'s' if len(needed) > 1 else ''} {_and(needed)}; this file has: {shown}"
        )
        return what, _mapping_remedy(name, needed, columns)
    if fitting:
        return f"the columns {shown} fit several formats: {_and(fitting)}", f"say which: format: {fitting[0]}"
    what = f"no format fits the columns {shown}"
    likely = guess([row.values for row in rows])
    if likely and likely.task == task:
        return what, _mapping_of(likely.format, likely.columns)
    if likely and likely.task in ("pairs", "singles"):
        stage = _NEEDS[likely.task].stage
        return what, f"use {stage}, and {_mapping_of(likely.format, likely.columns)}"
    return what, _mapping_remedy(need.format, need.words, [*likely.columns.values()] if likely else columns)


def _wrong_mapping(spec: DatasetSpec, columns: Sequence[str], task: Task) -> tuple[str, str] | None:
    of_task = [name for name in FORMATS if task in _module(name).TASKS]
    names = of_task if spec.format == "auto" else [spec.format]
    words = list(dict.fromkeys(word for name in names for word in _module(name).WORDS))
    for word, column in spec.columns.items():
        if word not in words:
            return f"columns: '{word}' is not a column name of the format {spec.format}", _nearest(word, words, "names")
        if column is not None and not has_column(columns, column):
            return f"columns: there is no column '{column}'", _nearest(column, columns, "columns")
    return None


def _nearest(word: str, valid: Sequence[str], kind: str) -> str:
    return f"{did_you_mean(word, valid)} the {kind} are: {', '.join(valid)}".lstrip()


def _mapping_remedy(name: str, words: Sequence[str], columns: Sequence[str]) -> str:
    """A line to copy into the recipe; only the user knows the meaning of the columns."""
    shown = list(columns[: len(words)]) + ["…"] * (len(words) - len(columns))
    return _mapping_of(name, dict(zip(words, shown, strict=True)))


def _mapping_of(name: str, columns: Mapping[str, str]) -> str:
    mapping = ", ".join(f"{word}: {column}" for word, column in columns.items())
    return f"say which column is which, e.g. {{format: {name}, columns: {{{mapping}}}}}"


def _required(module: ModuleType) -> list[str]:
    """The column names without which the format does not match."""
    words = list(module.WORDS)
    return [word for word in words if not module.matches([other for other in words if other != word])]


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _module(name: str) -> ModuleType:
    return import_module(FORMATS[name])
