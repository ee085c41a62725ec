"""Writes a first recipe for a model and data, as commented YAML, from config.json, the columns and the first rows."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ascendtune.core.errors import DataError
from ascendtune.core.units import count_of, format_bytes, format_count
from ascendtune.recipe.todo import TODO

if TYPE_CHECKING:
    from ascendtune.cli.init_data import DataFacts
    from ascendtune.cli.preset import Preset
    from ascendtune.data.spec import Task


_LENGTH_STEP = 256
_LENGTH_OF_TEXTS = 2048
# AdamW in fp32: weights, gradients and two moments.
_BYTES_PER_PARAMETER_FULL = 16
_LARGEST_FULL_PARAMETERS = 3e9
_LARGEST_WITHOUT_CHECKPOINTING = 1e9
_HELD_OUT = 0.02
_FEW_ROWS = 200
_FEW_BAD_ROWS = 0.1
"""With a larger share of bad rows the guessed columns are probably wrong."""
_CHARACTERS_OF_A_ROW = 200_000
_CHARACTERS_OF_ALL_ROWS = 2_000_000
"""Tokenising takes a microsecond and 0.3 KB per character."""


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


_REWARD = replace(
    _STAGES["pairs"], method=("  stage: reward  # scores answers; preference: prefers the chosen answer",)
)
_TUNER_KEYS = {
    "lora": ("  lora:", "    rank: 16", "    target: all-linear"),
    "oft": ("  oft:", "    block_size: 32", "    target: all-linear"),
}
_OTHER_TEMPLATES = ("qwen", "llama3", "chatml")
"""Tried in this order if the model's own template refuses the rows; qwen writes tool calls."""


def draft(
    model: ModelFacts,
    data: Sequence[DataFacts],
    *,
    tuner: str | None = None,
    template: str | None = None,
    stage: str | None = None,
    preset: Preset | None = None,
) -> tuple[str, Length | None]:
    """The text of the recipe; and the length of the longest row, if rows are read and not divided.

    Args:
        data: data sets for one stage, which follows from their rows.
        tuner: full, lora or oft; the default depends on the size of the model.
        template: as data.template; the default is the first that renders the rows.
        stage: reward in place of preference, for pairs of answers.
        preset: a recipe whose sections other than name, model and data are copied.

    Raises:
        DataError: the data sets are for different stages, or the template refuses the rows.
    """
    task = _common_task(data)
    template_and_length, longest = _template_and_length(model, data, task, template)
    about_data = [
        f"name: {_name(model.path, data[0].path)}",
        "",
        "model:",
        *_key("path", model.path, f"{model.model_type}, {format_count(model.parameters)} parameters"),
        "",
        "data:",
        "  train:",
        *(line for each in data for line in _dataset(each)),
        *template_and_length,
        *_key("eval_fraction", *_held_out(task, sum(len(each.rows) for each in data))),
        *_key("on_bad_row", *_bad_rows(data)),
        "",
    ]
    if preset:
        how = [preset.sections]
    else:
        is_small = task != "text" and sum(len(each.raw) for each in data) < _FEW_ROWS
        how = _training_sections(model, _REWARD if stage == "reward" else _STAGES[task], tuner, is_small=is_small)
    return "\n".join([*about_data, *how]).rstrip("\n") + "\n", longest


def _training_sections(model: ModelFacts, stage: _Stage, tuner: str | None, *, is_small: bool) -> list[str]:
    """The sections after `data`.

    Args:
        is_small: whether there are so few rows that steps of eight sequences would be too few to learn anything.
    """
    large = model.parameters is not None and model.parameters > _LARGEST_FULL_PARAMETERS
    tuner = tuner or ("lora" if large else "full")
    checkpointing = model.parameters is not None and model.parameters > _LARGEST_WITHOUT_CHECKPOINTING
    return [
        "method:",
        *stage.method,
        *_key("tuner", tuner, _why_tuner(model, tuner)),
        *_TUNER_KEYS.get(tuner, ()),
        "",
        "optim:",
        *_key("learning_rate", (1e-5 if tuner == "full" else 1e-4) * stage.rate),
        *_key("scheduler", "cosine"),
        *_key("warmup_ratio", 0.03),
        *_key("epochs", stage.epochs, "or max_steps"),
        "",
        "batch:",
        *_key("per_device", 1, f"{stage.sequences} per device"),
        *_key(
            "accumulate",
            1 if is_small else 8,
            "per_device × accumulate × devices of them make one step" + ("; 1 because of the few rows" * is_small),
        ),
        "",
        "precision: auto  # bf16 if the device supports it, else fp16, else fp32",
        "",
        "memory:",
        *_key("gradient_checkpointing", checkpointing, "true: less memory, about a third slower"),
        "",
        "seed: 42",
    ]


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


def _template_and_length(
    model: ModelFacts, data: Sequence[DataFacts], task: Task, template: str | None
) -> tuple[list[str], Length | None]:
    length = min(model.max_length or _LENGTH_OF_TEXTS, _LENGTH_OF_TEXTS)
    if task == "text":
        return _key("max_length", length, "longer texts become several rows"), None
    chosen, why, longest = _template(model, data, template)
    if not any(each.rows for each in data):
        return [*_key("template", chosen, why), *_key("max_length", length, "the rows are not read yet")], None
    return [*_key("template", chosen, why), *_key("max_length", *_max_length(model, longest))], longest


def _template(model: ModelFacts, data: Sequence[DataFacts], given: str | None) -> tuple[str, str, Length]:
    """The template, the reason for it, and the length of the longest row.

    Raises:
        DataError: it refuses the rows.
    """
    from ascendtune.data.spans import TemplateRefusedRow

    if given:
        return given, "as --template says", longest_row(model, data, given)
    own = "auto" if model.has_chat_template else "chatml"
    try:
        return own, "the model's own" if own == "auto" else "the model has none", longest_row(model, data, own)
    except TemplateRefusedRow as refusal:
        for other in _OTHER_TEMPLATES:
            with suppress(TemplateRefusedRow):
                reason = " ".join(refusal.reason.split())[:80]
                return other, f"{own} refuses these rows: {reason}", longest_row(model, data, other)
        raise


def _held_out(task: Task, rows: int) -> tuple[float, str]:
    """The evaluation fraction, and a comment. Labelled answers need at least two evaluation rows."""
    if _HELD_OUT * rows >= (2 if task == "singles" else 1):
        return _HELD_OUT, "used for the evaluation loss"
    return 0.0, "too few rows for an evaluation loss"


def _bad_rows(data: Sequence[DataFacts]) -> tuple[str, str]:
    if any(each.format == "scored" for each in data):
        return "skip", "rows in which no answer scores higher than another are skipped and counted"
    bad = sum(len(each.bad) for each in data)
    read = bad + sum(len(each.rows) for each in data)
    if 0 < bad <= _FEW_BAD_ROWS * read:
        return "skip", f"{bad} of the first {count_of(read, 'row')} cannot be trained on; or fail: stop at such rows"
    return "fail", "or skip: skip such rows and count them"


def _key(name: str, value: Any, comment: str | None = None) -> list[str]:
    return [f"  {name}: {_scalar(value)}" + (f"  # {comment}" if comment else "")]


def _dataset(data: DataFacts) -> list[str]:
    found = comment(", ".join(data.found[:6]))
    reading = [f"      {name}: {_scalar(value)}" for name, value in data.reading.items()]
    if data.is_undecided:
        likely = f"; likely {comment(_scalar(data.columns))}" if data.columns else ""
        columns = dict.fromkeys(data.undecided_columns, TODO)
        return [
            f"    - path: {_scalar(data.path)}  # columns: {found}",
            *reading,
            f"      format: {data.format}",
            f"      columns: {_scalar(columns)}  # {TODO}: the columns' meanings{likely}",
        ]
    lines = [f"    - path: {_scalar(data.path)}  # {data.format}: {found}", *reading]
    if data.needs_format:
        lines.append(f"      format: {data.format}")
    if data.columns:
        lines.append(f"      columns: {_scalar(data.columns)}")
    return lines


def comment(text: str) -> str:
    """Text from a file as part of a comment: one line of printable characters."""
    return "".join(character if character.isprintable() else " " for character in text)[:200]


def _scalar(value: Any) -> str:
    import yaml

    if isinstance(value, float):
        return f"{value:g}" if value >= 0.001 or not value else f"{value:.1e}".replace("e-0", "e-")
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def _max_length(model: ModelFacts, longest: Length) -> tuple[int, str]:
    """max_length, and a comment: 1.25 times the longest row read, rounded up to 256, at most the model's limit."""
    rounded = max(_LENGTH_STEP, -(-int(longest.tokens * 1.25) // _LENGTH_STEP) * _LENGTH_STEP)
    seen = f"the longest of the first rows has {'' if longest.is_exact else 'about '}{longest.tokens:,} tokens"
    if model.max_length is not None and model.max_length < rounded:
        return model.max_length, f"the model's limit; {seen}"
    return rounded, seen


def _why_tuner(model: ModelFacts, tuner: str) -> str:
    if tuner not in _TUNER_KEYS:
        return "or lora: adapters only, much less memory"
    what, needed = "rotations" if tuner == "oft" else "adapters", "far more memory"
    if model.parameters:
        needed = f"about {format_bytes(model.parameters * _BYTES_PER_PARAMETER_FULL)} for weights and optimizer"
    return f"{what} only; full needs {needed}"


def _name(model: str, data: str) -> str:
    parts = [Path(data).name.split(".")[0], Path(model).name]
    return re.sub(r"[^\w.-]+", "-", "-".join(parts)).strip("-.")


@dataclass(frozen=True)
class ModelFacts:
    """Facts from config.json and the headers of the weights; None if unknown."""

    path: str
    model_type: str
    parameters: float | None
    max_length: int | None
    has_chat_template: bool


def inspect_model(path: str) -> ModelFacts:
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


class Length(NamedTuple):
    """Length of a row."""

    tokens: int
    is_exact: bool
    """Whether it was counted; otherwise it is estimated from a part of the row, or of the rows."""


def longest_row(model: ModelFacts, data: Sequence[DataFacts], template: str) -> Length:
    """Length of the longest of the first rows, for bounded work; rows are conversations or answers."""
    from ascendtune.data.conversation import conversations_of
    from ascendtune.data.spans import NeededSpans
    from ascendtune.data.template import ChatTemplate
    from ascendtune.data.tokenizer import Tokenizer
    from ascendtune.hub.download import fetch_model

    tokenizer = Tokenizer.load(fetch_model(model.path, weights_needed=False))
    chat = ChatTemplate.load(template, tokenizer)
    only_text = NeededSpans(0, 0)
    texts = [
        chat.render(conversation, only_text).text
        for each in data
        for row in each.rows
        for conversation in conversations_of(row)
    ]
    longest, left = Length(0, is_exact=True), _CHARACTERS_OF_ALL_ROWS
    for text in sorted(texts, key=len, reverse=True):
        if left <= 0:
            return longest._replace(is_exact=False)
        part = text[:_CHARACTERS_OF_A_ROW]
        left -= len(part)
        counted = len(tokenizer.encode(part)) * len(text) // max(1, len(part))
        longest = max(longest, Length(counted, is_exact=len(part) == len(text)))
    return longest


def _parameters(directory: Path) -> float | None:
    """Number of parameters, from the tensor shapes in the headers of the weights."""
    from ascendtune.hub.safetensors_header import read_safetensors_header

    headers = [read_safetensors_header(file) for file in directory.glob("*.safetensors")]
    total = sum(math.prod(tensor.shape) for header in headers for tensor in header.tensors.values())
    return float(total) if total else None
