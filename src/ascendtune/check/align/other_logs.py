"""Curves of losses in the logs of other trainers: transformers' Trainer, LLaMA-Factory, TensorBoard, CSV."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ascendtune.check.align.curve import Curve, no_records_error
from ascendtune.core.errors import DataError
from ascendtune.core.foreign_json import parsed_json, read_json_object, read_regular_file

EVENTS = "events.out.tfevents"
"""Prefix of the names of TensorBoard's files."""
MOST_BYTES = 512 << 20
"""A record of a step takes some hundred bytes: this is a million steps."""
_TRAINER = {name: name for name in ("step", "loss", "grad_norm", "learning_rate")}
# LlamaFactory, src/llamafactory/train/callbacks.py (LogCallback).
_LLAMAFACTORY = {"step": "current_steps", "loss": "loss", "learning_rate": "lr"}
# Names of columns and TensorBoard tags, the likeliest first; compared in lower case, in exports of wandb only the part
# after the last " - ".
_NAMES = {
    "step": ("step", "global_step", "train/global_step", "iteration", "iter", "current_steps"),
    "loss": ("loss", "train/loss", "train_loss", "training_loss", "lm loss", "value"),
    "grad_norm": ("grad_norm", "train/grad_norm", "grad norm"),
    "learning_rate": ("learning_rate", "train/learning_rate", "lr"),
}
_MEANS_OVER_STEPS = ("transformers Trainer", "LLaMA-Factory")
"""Since the last record (transformers 5.23, `_maybe_log_save_evaluate`)."""
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+,(\d{1,2}|\d{4,})([eE][-+]?\d+)?\s*")
"""A number whose comma does not separate thousands."""
_LONGEST_FIELD = 128 << 10
"""In bytes; the limit of the csv module is one for the process, and reading of data raises it."""


class Log(NamedTuple):
    """The curve of a log, and what wrote it, for messages."""

    kind: str
    curve: Curve


def log_of(kind: str, path: Path, records: Iterable[dict[str, Any]], names: dict[str, str], *, rounded: bool) -> Log:
    """The log at `path` of these records.

    Args:
        names, rounded: as in `Curve.of_records`.

    Raises:
        DataError: no record has a step and a loss.
    """
    curve = Curve.of_records(records, names, rounded=rounded, source=str(path))
    return Log(kind, replace(curve, readings=("steps",)) if kind in _MEANS_OVER_STEPS else curve)


def read_trainer_state(path: Path) -> Log:
    """trainer_state.json of transformers' Trainer, which ms-swift and TRL write, too.

    Raises:
        DataError: it has no step or no loss.
        MachineError: it cannot be read.
    """
    history = read_json_object(path, MOST_BYTES).get("log_history")
    if not isinstance(history, list):
        raise no_records_error(path)
    records = (each for each in history if isinstance(each, dict))
    return log_of("transformers Trainer", path, records, _TRAINER, rounded=True)


def read_json_lines(path: Path) -> Log:
    """A line for each step, such as LLaMA-Factory's trainer_log.jsonl; raises as above."""
    content = read_regular_file(path, MOST_BYTES)
    # A last line without newline is a write that was cut off.
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    records = [parsed_json(line, path) for line in lines if line.strip()]
    rows = [each for each in records if isinstance(each, dict)]
    if rows and "current_steps" in rows[0]:
        return log_of("LLaMA-Factory", path, rows, _LLAMAFACTORY, rounded=True)
    names = _names_of(list(dict.fromkeys(key for row in rows[:100] for key in row)), path)
    return log_of("JSON lines", path, rows, names, rounded=True)


def read_table(path: Path) -> Log:
    """A CSV or TSV with a column of steps and one of losses, such as an export of wandb; raises as above."""
    text = read_regular_file(path, MOST_BYTES).decode("utf-8-sig", errors="replace")
    try:
        dialect = csv.Sniffer().sniff(text[:4096], delimiters=",;\t")
    except csv.Error:
        dialect = csv.excel
    csv.field_size_limit(_LONGEST_FIELD)
    try:
        rows = list(csv.DictReader(text.splitlines(), dialect=dialect))
    except csv.Error as error:
        raise DataError(
            f"the table cannot be read: {error}",
            code="table-unreadable",
            remedy="export it again, with a column `step` and a column `loss`",
            where=path,
        ) from error
    names = _names_of([each for each in (rows[0] if rows else {}) if each], path)
    # If semicolons separate the columns, a comma may be the decimal separator; in CSV such a cell is quoted.
    has_comma = any(_DECIMAL_COMMA.fullmatch(row.get(key) or "") for row in rows for key in names.values())
    decimal = "," if dialect.delimiter == ";" or has_comma else "."
    cells = ({key: _cell(row.get(key), decimal) for key in names.values()} for row in rows)
    # An empty cell is not NaN: exports of several runs or several metrics have gaps.
    records = ({key: value for key, value in row.items() if value is not None} for row in cells)
    return log_of("CSV", path, records, names, rounded=True)


def _cell(text: str | None, decimal: str) -> float | None:
    """The number in a cell, such as 1234.5, `1,234.5` or, with a decimal comma, `1.234,5`; None if it has none."""
    try:
        if text and decimal in text:
            text = text.replace({",": ".", ".": ","}[decimal], "").replace(decimal, ".")
        return float(text) if text else None
    except ValueError:
        return None


def _names_of(columns: list[str], path: Path) -> dict[str, str]:
    """Which column holds which number.

    Raises:
        DataError: no column is known as the step or as the loss.
    """
    if not columns:
        raise no_records_error(path)
    by_name: dict[str, str] = {}
    for column in columns:
        by_name.setdefault(column.rpartition(" - ")[2].strip().lower(), column)
    names = {name: by_name[each] for name, known in _NAMES.items() for each in reversed(known) if each in by_name}
    if missing := [name for name in ("step", "loss") if name not in names]:
        raise DataError(
            f"no column has the {missing[0]}: the columns are {', '.join(columns[:10])}",
            code="unknown-columns",
            remedy="name the columns `step` and `loss`",
            where=path,
        )
    return names


def read_tensorboard(path: Path) -> Log:
    """TensorBoard events of the file, and of those beside it: a resumed run has written several; raises as above."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    by_step: dict[int, dict[str, Any]] = {}
    # The loader of TensorBoard would wait for a pipe.
    for file in sorted(each for each in path.parent.glob(f"{EVENTS}*") if each.is_file()):
        for event in LegacyEventFileLoader(str(file)).Load():
            for value in event.summary.value:
                number = value.simple_value if value.HasField("simple_value") else _scalar_of(value.tensor)
                if number is not None:
                    by_step.setdefault(event.step, {"step": event.step})[value.tag] = number
    names = _names_of(list(dict.fromkeys(key for record in by_step.values() for key in record)), path)
    return log_of("TensorBoard", path, by_step.values(), names, rounded=False)


def _scalar_of(tensor: Any) -> float | None:
    values = list(tensor.float_val) or list(tensor.double_val)
    return float(values[0]) if len(values) == 1 and math.isfinite(values[0]) else None
