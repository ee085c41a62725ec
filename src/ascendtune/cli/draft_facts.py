"""What a model and data say about themselves, for a first recipe: config.json, columns, first rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ascendtune.data.conversation import RawRow, Row
    from ascendtune.data.format.choose import Convert
    from ascendtune.data.spec import DatasetSpec, Task

_ROWS_LOOKED_AT = 200
# What files call a question and its answer when they follow no known format.
_PAIRS = (
    ("question", "answer"),
    ("query", "response"),
    ("input", "output"),
    ("source", "target"),
    ("prompt", "answer"),
)


@dataclass(frozen=True)
class ModelFacts:
    """What config.json and the weights' headers say; None where they do not."""

    path: str
    model_type: str
    parameters: float | None
    max_length: int | None
    has_chat_template: bool


@dataclass(frozen=True)
class DataFacts:
    """What the first rows of one data set say."""

    path: str
    task: Task
    """What the rows can be learnt for."""
    format: str
    columns: dict[str, str]
    found: list[str]
    """The file's columns."""
    rows: list[Row]
    """Those that can be trained on."""
    bad: list[str]
    """Place and reason of each of the others."""


def look_at_model(path: str) -> ModelFacts:
    """Read what describes the model; a hub id is downloaded, without its weights.

    Raises:
        RecipeError: no such model, or not a whole one.
    """
    from ascendtune.data.tokenizer import Tokenizer
    from ascendtune.hub.download import fetch_model
    from ascendtune.hub.model_config import read_model_config, text_config

    directory = fetch_model(path, weights_needed=False)
    config = read_model_config(directory / "config.json")
    return ModelFacts(
        path=path,
        model_type=config["model_type"],
        parameters=_parameters(directory),
        max_length=text_config(config).get("max_position_embeddings"),
        has_chat_template="default" in Tokenizer.load(directory).chat_templates,
    )


def look_at_data(path: str) -> DataFacts:
    """Read the first rows.

    Raises:
        DataError: no such data, unreadable, columns that fit no format, or no row that can be trained on.
    """
    from ascendtune.core.errors import DataError
    from ascendtune.core.units import count_of
    from ascendtune.data.conversation import BadRow
    from ascendtune.data.read import read_rows
    from ascendtune.data.spec import DatasetSpec
    from ascendtune.hub.download import fetch_dataset

    rows = list(islice(read_rows(DatasetSpec(path=path), fetch_dataset(path)), _ROWS_LOOKED_AT))
    found = list(dict.fromkeys(column for row in rows for column in row.values))
    columns = _guessed_columns(found)
    task, name, convert = _choose_task(DatasetSpec(path=path, columns={**columns}), rows)
    made = [convert(row.values) for row in rows]
    good = [each for each in made if not isinstance(each, BadRow)]
    bad = [f"{row.place}: {each.reason}" for row, each in zip(rows, made, strict=True) if isinstance(each, BadRow)]
    if not good:
        raise DataError(
            f"none of the first {count_of(len(rows), 'row')} can be trained on: {bad[0].removeprefix(f'{path}:')}",
            remedy="mend the rows; README.md shows what a row of each format is",
            where=path,
        )
    return DataFacts(path, task, name, columns, found, good, bad)


def _choose_task(spec: DatasetSpec, rows: Sequence[RawRow]) -> tuple[Task, str, Convert]:
    """The first task that the columns are for, with the format's name and the function that reads its rows."""
    from ascendtune.core.errors import DataError
    from ascendtune.data.format.choose import choose_format

    tasks: tuple[Task, ...] = ("conversations", "pairs", "singles")
    refusals = []
    for task in tasks:
        try:
            name, convert = choose_format(spec, rows, task)
        except DataError as error:
            refusals.append(error)
            continue
        # Texts could be learnt as answers to nothing; who has some wants them read.
        return ("text", *choose_format(spec, rows, "text")) if name == "text" else (task, name, convert)
    raise refusals[0]


def longest_row(model: ModelFacts, data: Sequence[DataFacts], template: str) -> int:
    """Tokens of the longest of the first rows, of which none is a text."""
    from ascendtune.data.conversation import conversations_of
    from ascendtune.data.template import ChatTemplate
    from ascendtune.data.tokenizer import Tokenizer
    from ascendtune.hub.download import fetch_model

    tokenizer = Tokenizer.load(fetch_model(model.path, weights_needed=False))
    chat = ChatTemplate.load(template, tokenizer)
    texts = (
        chat.render(conversation).text for each in data for row in each.rows for conversation in conversations_of(row)
    )
    return max((len(tokenizer.encode(text)) for text in texts), default=0)


def _guessed_columns(found: Sequence[str]) -> dict[str, str]:
    known = {"instruction", "conversations", "messages", "completion"}
    if known & set(found):
        return {}
    pairs = ({"prompt": one, "completion": two} for one, two in _PAIRS if one in found and two in found)
    return next(({word: column for word, column in pair.items() if word != column} for pair in pairs), {})


def _parameters(directory: Path) -> float | None:
    """From the headers of the weights: the product of each tensor's shape."""
    from ascendtune.hub.safetensors_header import read_safetensors_header

    headers = [read_safetensors_header(file) for file in directory.glob("*.safetensors")]
    total = sum(math.prod(tensor.shape) for header in headers for tensor in header.tensors.values())
    return float(total) if total else None
