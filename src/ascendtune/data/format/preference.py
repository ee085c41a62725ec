"""Preference: a chosen and a rejected answer to one prompt."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from ascendtune.data.conversation import BadRow, PreferencePair
from ascendtune.data.format.answer import PROMPT_WORDS, answered
from ascendtune.data.format.turns import is_text, listed
from ascendtune.data.json_rows import kind_of

TASKS = ("pairs",)
WORDS = (
    *("chosen", "rejected", "rejected_response", "rejected_messages", "preferred_output", "non_preferred_output"),
    *("margin", "question", *PROMPT_WORDS),
)

_REJECTED = ("rejected_response", "rejected_messages")
"""ms-swift's names: beside `messages`, a whole conversation that ends with the chosen answer."""
_OPENAI = ("preferred_output", "non_preferred_output")
"""OpenAI's names: lists of turns, beside `input` with messages and tools."""


def matches(columns: Collection[str]) -> bool:
    is_swift = "messages" in columns and any(name in columns for name in _REJECTED)
    pairs = (("chosen", "rejected"), _OPENAI)
    return is_swift or any(all(name in columns for name in pair) for pair in pairs)


def convert(row: Mapping[str, Any]) -> PreferencePair:
    """The conversations must be equal except for the last turn. `margin` is how much better the chosen answer is."""
    row = _with_prompt(_of_openai(_with_chosen(row)))
    chosen, rejected = answered(row, "chosen"), answered(row, "rejected")
    if chosen.messages[:-1] != rejected.messages[:-1]:
        raise BadRow("prompts that differ", "chosen and rejected differ before the last turn")
    if chosen.messages[-1] == rejected.messages[-1]:
        raise BadRow("chosen and rejected are the same")
    return PreferencePair(chosen, rejected, _number(row.get("margin")))


def _with_chosen(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row, with `messages` as the chosen conversation if its rejected answer has ms-swift's name."""
    turns = listed(row.get("messages"))
    other = next((row[name] for name in _REJECTED if row.get(name) is not None), None)
    if row.get("chosen") is not None or other is None or not isinstance(turns, list) or not turns:
        return row
    # An answer that is a text is not parsed, even if it looks like JSON.
    rejected = other if is_text(row.get("rejected_response")) else listed(other)
    if not isinstance(rejected, list):
        rejected = [*turns[:-1], {"role": "assistant", "content": rejected}]
    kept = {name: value for name, value in row.items() if name not in ("messages", *_REJECTED)}
    return {**kept, "chosen": turns, "rejected": rejected}


def _of_openai(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row, with OpenAI's names of preference fine-tuning replaced by ours."""
    if all(row.get(name) is None for name in _OPENAI):
        return row
    inputs = listed(row.get("input"))
    messages, offered = (inputs.get("messages"), inputs.get("tools")) if isinstance(inputs, dict) else (inputs, None)
    kept = {name: value for name, value in row.items() if name not in ("input", *_OPENAI)}
    better, worse = (listed(row.get(name)) for name in _OPENAI)
    return {**kept, "prompt": messages, "chosen": better, "rejected": worse, "tools": offered or row.get("tools")}


def _with_prompt(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row, with `question` or `input` as the prompt if it has no other and the answer does not contain it."""
    given = [name for name in ("question", *PROMPT_WORDS) if name != "system" and row.get(name) is not None]
    if given not in (["question"], ["input"]):
        return row
    try:
        brings_prompt = any(each["role"] == "user" for each in answered(row, "chosen").messages)
    except BadRow:
        brings_prompt = False
    return row if brings_prompt else {**row, "prompt": row[given[0]], "input": None}


def _number(value: Any) -> float:
    if value is None or value == "":
        return 0.0
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise BadRow("margin is not a number", f"margin is {_shown(value)}")
    return number


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float) else kind_of(value)
