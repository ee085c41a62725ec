"""A first recipe for a model and data, from what both say about themselves: config.json, columns, first rows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascendtune.core.units import format_bytes, format_count

if TYPE_CHECKING:
    from ascendtune.data.conversation import Conversation

_ROWS_LOOKED_AT = 200
_LENGTH_STEP = 256
# AdamW in fp32: weights, gradients and two moments.
_BYTES_PER_PARAMETER_FULL = 16
_LARGEST_FULL_PARAMETERS = 3e9
_LARGEST_WITHOUT_CHECKPOINTING = 1e9
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
    format: str
    columns: dict[str, str]
    found: list[str]
    """The file's columns."""
    conversations: list[Conversation]


def look_at_model(path: str) -> ModelFacts:
    """Read what describes the model; a hub id is downloaded, without its weights.

    Raises:
        RecipeError: no such model, or not a whole one.
    """
    from ascendtune.data.tokenizer import Tokenizer
    from ascendtune.hub.download import fetch_model

    directory = fetch_model(path, weights_needed=False)
    config = json.loads((directory / "config.json").read_text())
    return ModelFacts(
        path=path,
        model_type=config["model_type"],
        parameters=_parameters(directory),
        max_length=config.get("max_position_embeddings"),
        has_chat_template="default" in Tokenizer.load(directory).chat_templates,
    )


def look_at_data(path: str) -> DataFacts:
    """Read the first rows.

    Raises:
        DataError: no such data, unreadable, or columns that fit no format.
    """
    from ascendtune.core.errors import DataError
    from ascendtune.data.conversation import Conversation
    from ascendtune.data.format.choose import choose_format
    from ascendtune.data.read import read_rows
    from ascendtune.data.spec import DatasetSpec
    from ascendtune.hub.download import fetch_dataset

    rows = list(islice(read_rows(DatasetSpec(path=path), fetch_dataset(path)), _ROWS_LOOKED_AT))
    found = list(dict.fromkeys(column for row in rows for column in row.values))
    columns = _guessed_columns(found)
    try:
        name, convert = choose_format(DatasetSpec(path=path, columns={**columns}), rows)
    except DataError as error:
        if "stage" not in error.what:
            raise
        raise DataError(
            error.what,
            remedy="init writes recipes of stage sft; for pairs of answers copy recipes/lora-dpo.yaml or "
            "lora-reward.yaml, for answers with a label lora-kto.yaml",
            where=error.where,
        ) from error
    made = [convert(row.values) for row in rows]
    return DataFacts(path, name, columns, found, [each for each in made if isinstance(each, Conversation)])


def longest_row(model: ModelFacts, data: Sequence[DataFacts], template: str) -> int:
    """Tokens of the longest of the first rows."""
    from ascendtune.data.template import ChatTemplate
    from ascendtune.data.tokenizer import Tokenizer
    from ascendtune.hub.download import fetch_model

    tokenizer = Tokenizer.load(fetch_model(model.path, weights_needed=False))
    chat = ChatTemplate.load(template, tokenizer)
    texts = (chat.render(conversation).text for each in data for conversation in each.conversations)
    return max((len(tokenizer.encode(text)) for text in texts), default=0)


def draft(model: ModelFacts, data: Sequence[DataFacts], *, tuner: str | None = None) -> str:
    """The recipe as commented YAML.

    Args:
        tuner: full or lora; by default chosen by the size of the model.
    """
    template = "auto" if model.has_chat_template else "chatml"
    longest = longest_row(model, data, template)
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
        *_key("template", template, "the model's own" if template == "auto" else "the model has none"),
        *_key("max_length", *_max_length(model, longest)),
        *_key("eval_fraction", 0.02, "held out for the evaluation loss"),
        *_key("on_bad_row", "fail", "or skip: leave such rows out and count them"),
        "",
        "method:",
        *_key("tuner", tuner, _why_tuner(model, tuner)),
        *(["  lora:", "    rank: 16", "    target: all-linear"] if tuner == "lora" else []),
        "",
        "optim:",
        *_key("learning_rate", 1e-4 if tuner == "lora" else 1e-5),
        *_key("scheduler", "cosine"),
        *_key("warmup_ratio", 0.03),
        *_key("epochs", 3, "or max_steps"),
        "",
        "batch:",
        *_key("per_device", 1, "packed sequences of max_length tokens that a device takes at once"),
        *_key("accumulate", 8, "per_device × accumulate × devices sequences make one step"),
        "",
        "precision: auto  # bf16 where the device has it, else fp32; fp16 only when asked for",
        "",
        "memory:",
        *_key("gradient_checkpointing", checkpointing, "true: less memory, about a third slower"),
        "",
        "seed: 42",
    ]
    return "\n".join(lines) + "\n"


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
        return f"{value:g}" if value >= 0.001 else f"{value:.1e}".replace("e-0", "e-")
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def _guessed_columns(found: Sequence[str]) -> dict[str, str]:
    known = {"instruction", "conversations", "messages", "completion"}
    if known & set(found):
        return {}
    pairs = ({"prompt": one, "completion": two} for one, two in _PAIRS if one in found and two in found)
    return next(({word: column for word, column in pair.items() if word != column} for pair in pairs), {})


def _max_length(model: ModelFacts, longest: int) -> tuple[int, str]:
    """Room for the longest row seen and some more, in whole steps, within what the model was made for; and why."""
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


def _parameters(directory: Path) -> float | None:
    """From the headers of the weights: the product of each tensor's shape."""
    total = 0
    for file in directory.glob("*.safetensors"):
        with file.open("rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        shapes = (tensor["shape"] for name, tensor in header.items() if name != "__metadata__")
        for shape in shapes:
            size = 1
            for length in shape:
                size *= length
            total += size
    return float(total) if total else None


def _name(model: str, data: str) -> str:
    parts = [Path(data).name.split(".")[0], Path(model).name]
    return re.sub(r"[^\w.-]+", "-", "-".join(parts)).strip("-.")
