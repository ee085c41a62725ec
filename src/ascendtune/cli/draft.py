"""A first recipe for a model and data, as commented YAML, from config.json, the columns and the first rows."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascendtune.core.errors import DataError
from ascendtune.core.units import format_bytes, format_count

if TYPE_CHECKING:
    from ascendtune.data.conversation import RawRow, Row
    from ascendtune.data.format.choose import Convert
    from ascendtune.data.spec import DatasetSpec, Task


_LENGTH_STEP = 256
_LENGTH_OF_TEXTS = 2048
# AdamW in fp32: weights, gradients and two moments.
_BYTES_PER_PARAMETER_FULL = 16
_LARGEST_FULL_PARAMETERS = 3e9
_LARGEST_WITHOUT_CHECKPOINTING = 1e9
_HELD_OUT = 0.02


@dataclass(frozen=True)
class _Stage:
    """The parts of a recipe that depend on the kind of rows."""

    rows: str
    """Name of such rows in messages."""
    method: tuple[str, ...]
    """Lines of the section `method`, above the tuner."""
    epochs: int
    rate: float
    """Learning rate, relative to that of stage sft."""
    sequences: str
    """The unit of batch.per_device."""


_PACKED = "packed sequences of max_length tokens"
_STAGES: dict[Task, _Stage] = {
    "conversations": _Stage("conversations", ("  stage: sft  # trains on the answers",), 3, 1.0, _PACKED),
    "text": _Stage("texts", ("  stage: pretrain  # trains on whole texts",), 1, 1.0, _PACKED),
    "pairs": _Stage(
        "pairs of answers",
        (
            "  stage: preference  # prefers the chosen answer; reward: scores answers",
            "  preference:",
            "    loss: sigmoid  # DPO; or ipo, hinge, orpo, simpo",
            "    beta: 0.1      # higher keeps the model closer to the base model",
        ),
        1,
        0.1,
        "pairs of answers",
    ),
    "singles": _Stage(
        "answers with a label",
        (
            "  stage: preference",
            "  preference:",
            "    loss: kto  # answers with a label, good or bad",
            "    beta: 0.1  # higher keeps the model closer to the base model",
        ),
        1,
        0.1,
        "answers",
    ),
}


def draft(model: ModelFacts, data: Sequence[DataFacts], *, tuner: str | None = None) -> str:
    """The text of the recipe.

    Args:
        data: data sets for one stage, which follows from their rows.
        tuner: full or lora; the default depends on the size of the model.

    Raises:
        DataError: the data sets are for different stages.
    """
    task = _common_task(data)
    stage = _STAGES[task]
    large = model.parameters is not None and model.parameters > _LARGEST_FULL_PARAMETERS
    tuner = tuner or ("lora" if large else "full")
    checkpointing = model.parameters is not None and model.parameters > _LARGEST_WITHOUT_CHECKPOINTING
    lines = [
        f"name: {_name(model.path, data[0].path)}",
        "",
        "model:",
        *_key("path", model.path, f"{model.model_type}, {format_count(model.parameters)} parameters"),
        "",
        "data:",
        "  train:",
        *(line for each in data for line in _dataset(each)),
        *_template_and_lengths(model, data, task),
        *_key("eval_fraction", *_held_out(task, sum(len(each.rows) for each in data))),
        *_key("on_bad_row", "fail", "or skip: skip such rows and count them"),
        "",
        "method:",
        *stage.method,
        *_key("tuner", tuner, _why_tuner(model, tuner)),
        *(["  lora:", "    rank: 16", "    target: all-linear"] if tuner == "lora" else []),
        "",
        "optim:",
        *_key("learning_rate", (1e-4 if tuner == "lora" else 1e-5) * stage.rate),
        *_key("scheduler", "cosine"),
        *_key("warmup_ratio", 0.03),
        *_key("epochs", stage.epochs, "or max_steps"),
        "",
        "batch:",
        *_key("per_device", 1, f"{stage.sequences} per device"),
        *_key("accumulate", 8, "per_device × accumulate × devices of them make one step"),
        "",
        "precision: auto  # bf16 if the device supports it, else fp32; fp16 only if set",
        "",
        "memory:",
        *_key("gradient_checkpointing", checkpointing, "true: less memory, about a third slower"),
        "",
        "seed: 42",
    ]
    return "\n".join(lines) + "\n"


def _common_task(data: Sequence[DataFacts]) -> Task:
    first = data[0]
    for other in data[1:]:
        if other.task != first.task:
            raise DataError(
                f"{first.path} has {_STAGES[first.task].rows}, {other.path} has {_STAGES[other.task].rows}: "
                "they need different stages",
                code="mixed-data-stages",
                remedy="write a recipe for each",
            )
    return first.task


def _template_and_lengths(model: ModelFacts, data: Sequence[DataFacts], task: Task) -> list[str]:
    if task == "text":
        length = min(model.max_length or _LENGTH_OF_TEXTS, _LENGTH_OF_TEXTS)
        return _key("max_length", length, "longer texts become several rows")
    template = "auto" if model.has_chat_template else "chatml"
    return [
        *_key("template", template, "the model's own" if template == "auto" else "the model has none"),
        *_key("max_length", *_max_length(model, longest_row(model, data, template))),
    ]


def _held_out(task: Task, rows: int) -> tuple[float, str]:
    """The evaluation fraction, and a comment. Labelled answers need at least two evaluation rows."""
    if _HELD_OUT * rows >= (2 if task == "singles" else 1):
        return _HELD_OUT, "used for the evaluation loss"
    return 0.0, "too few rows for an evaluation loss"


def _key(name: str, value: Any, comment: str | None = None) -> list[str]:
    return [f"  {name}: {_scalar(value)}" + (f"  # {comment}" if comment else "")]


def _dataset(data: DataFacts) -> list[str]:
    lines = [f"    - path: {_scalar(data.path)}  # {data.format}: {', '.join(data.found[:6])}"]
    if data.columns:
        lines.append(f"      columns: {_scalar(data.columns)}")
    return lines


def _scalar(value: Any) -> str:
    import yaml

    if isinstance(value, float):
        return f"{value:g}" if value >= 0.001 or not value else f"{value:.1e}".replace("e-0", "e-")
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def _max_length(model: ModelFacts, longest: int) -> tuple[int, str]:
    """max_length, and a comment: 1.25 times the longest row read, rounded up to 256, at most the model's limit."""
    wanted = max(_LENGTH_STEP, -(-int(longest * 1.25) // _LENGTH_STEP) * _LENGTH_STEP)
    seen = f"the longest of the first rows has {longest:,} tokens"
    if model.max_length is not None and model.max_length < wanted:
        return model.max_length, f"the model's limit; {seen}"
    return wanted, seen


def _why_tuner(model: ModelFacts, tuner: str) -> str:
    if tuner == "lora":
        return "adapters only; full needs " + (
            f"about {format_bytes(model.parameters * _BYTES_PER_PARAMETER_FULL)} for weights and optimiser"
            if model.parameters
            else "far more memory"
        )
    return "or lora: adapters only, much less memory"


def _name(model: str, data: str) -> str:
    parts = [Path(data).name.split(".")[0], Path(model).name]
    return re.sub(r"[^\w.-]+", "-", "-".join(parts)).strip("-.")


_ROWS_LOOKED_AT = 200
# Columns of question and answer in files that follow no known format.
_PAIRS = (
    ("question", "answer"),
    ("query", "response"),
    ("input", "output"),
    ("source", "target"),
    ("prompt", "answer"),
)


@dataclass(frozen=True)
class ModelFacts:
    """Facts from config.json and the headers of the weights; None if unknown."""

    path: str
    model_type: str
    parameters: float | None
    max_length: int | None
    has_chat_template: bool


@dataclass(frozen=True)
class DataFacts:
    """Facts from the first rows of one data set."""

    path: str
    task: Task
    """The task that the rows are for."""
    format: str
    columns: dict[str, str]
    found: list[str]
    """The file's columns."""
    rows: list[Row]
    """Rows that can be trained on."""
    bad: list[str]
    """Place and reason of each bad row."""


def look_at_model(path: str) -> ModelFacts:
    """Read the description of the model; for a hub id, download it without weights.

    Raises:
        RecipeError: the model does not exist or is incomplete.
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
        DataError: the data does not exist, is unreadable, fits no format, or has no row that can be trained on.
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
            code="no-usable-rows",
            remedy="fix the rows; docs/data.md shows a row of each format",
            where=path,
        )
    return DataFacts(path, task, name, columns, found, good, bad)


def _choose_task(spec: DatasetSpec, rows: Sequence[RawRow]) -> tuple[Task, str, Convert]:
    """The first task that fits the columns, with the format's name and the function that converts its rows."""
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
        # Texts also fit as answers without a question; they are for pretraining.
        return ("text", *choose_format(spec, rows, "text")) if name == "text" else (task, name, convert)
    raise refusals[0]


def longest_row(model: ModelFacts, data: Sequence[DataFacts], template: str) -> int:
    """Number of tokens of the longest of the first rows; rows are conversations or answers."""
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
    """Number of parameters, from the tensor shapes in the headers of the weights."""
    from ascendtune.hub.safetensors_header import read_safetensors_header

    headers = [read_safetensors_header(file) for file in directory.glob("*.safetensors")]
    total = sum(math.prod(tensor.shape) for header in headers for tensor in header.tensors.values())
    return float(total) if total else None
