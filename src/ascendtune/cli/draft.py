"""A first recipe for a model and data, as commented YAML, from what both say about themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascendtune.cli.draft_facts import DataFacts, ModelFacts, longest_row
from ascendtune.core.errors import DataError
from ascendtune.core.units import format_bytes, format_count

if TYPE_CHECKING:
    from ascendtune.data.spec import Task

_LENGTH_STEP = 256
_LENGTH_OF_TEXTS = 2048
# AdamW in fp32: weights, gradients and two moments.
_BYTES_PER_PARAMETER_FULL = 16
_LARGEST_FULL_PARAMETERS = 3e9
_LARGEST_WITHOUT_CHECKPOINTING = 1e9
_HELD_OUT = 0.02


@dataclass(frozen=True)
class _Stage:
    """What a recipe says for one kind of rows."""

    rows: str
    """For messages."""
    method: tuple[str, ...]
    """Lines of its section, above the tuner."""
    epochs: int
    rate: float
    """Learning rate, as a share of that of stage sft."""
    sequences: str
    """What a device takes at once."""


_PACKED = "packed sequences of max_length tokens"
_STAGES: dict[Task, _Stage] = {
    "conversations": _Stage("conversations", ("  stage: sft  # answers are learnt",), 3, 1.0, _PACKED),
    "text": _Stage("texts", ("  stage: pretrain  # texts are learnt whole",), 1, 1.0, _PACKED),
    "pairs": _Stage(
        "pairs of answers",
        (
            "  stage: preference  # to answer as the chosen of two; reward: to give answers a score",
            "  preference:",
            "    loss: sigmoid  # DPO; or ipo, hinge, orpo, simpo",
            "    beta: 0.1      # higher holds the model closer to what it was",
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
            "    loss: kto  # answers that are marked good or bad",
            "    beta: 0.1  # higher holds the model closer to what it was",
        ),
        1,
        0.1,
        "answers",
    ),
}


def draft(model: ModelFacts, data: Sequence[DataFacts], *, tuner: str | None = None) -> str:
    """The recipe.

    Args:
        data: all for one stage, which their rows decide.
        tuner: full or lora; by default chosen by the size of the model.

    Raises:
        DataError: the data sets are for several stages.
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
        *(_lengths_of_texts(model) if task == "text" else _template_and_lengths(model, data)),
        *_key("eval_fraction", *_held_out(task, sum(len(each.rows) for each in data))),
        *_key("on_bad_row", "fail", "or skip: leave such rows out and count them"),
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
        *_key("per_device", 1, f"{stage.sequences} that a device takes at once"),
        *_key("accumulate", 8, "per_device × accumulate × devices of them make one step"),
        "",
        "precision: auto  # bf16 where the device has it, else fp32; fp16 only when asked for",
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
                "they are learnt in different stages",
                remedy="write a recipe for each",
            )
    return first.task


def _template_and_lengths(model: ModelFacts, data: Sequence[DataFacts]) -> list[str]:
    template = "auto" if model.has_chat_template else "chatml"
    return [
        *_key("template", template, "the model's own" if template == "auto" else "the model has none"),
        *_key("max_length", *_max_length(model, longest_row(model, data, template))),
    ]


def _lengths_of_texts(model: ModelFacts) -> list[str]:
    length = min(model.max_length or _LENGTH_OF_TEXTS, _LENGTH_OF_TEXTS)
    return _key("max_length", length, "longer texts become several rows")


def _held_out(task: Task, rows: int) -> tuple[float, str]:
    """The share for the evaluation, and why. An answer with a label needs another one beside it there too."""
    if _HELD_OUT * rows >= (2 if task == "singles" else 1):
        return _HELD_OUT, "held out for the evaluation loss"
    return 0.0, "too few rows to hold any out for the evaluation loss"


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


def _name(model: str, data: str) -> str:
    parts = [Path(data).name.split(".")[0], Path(model).name]
    return re.sub(r"[^\w.-]+", "-", "-".join(parts)).strip("-.")
