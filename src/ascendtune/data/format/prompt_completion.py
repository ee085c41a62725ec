"""Prompt and completion: two texts, or two lists of messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ascendtune.data.conversation import BadRow, Conversation, Message
from ascendtune.data.format.messages import messages_of
from ascendtune.data.format.turns import (
    checked,
    is_text,
    listed,
    not_text,
    require_question,
    system_message,
    tool_calls,
    tools,
)

TASKS = ("conversations",)
WORDS = ("prompt", "completion", "reasoning_content", "system", "tools")


def matches(columns: Collection[str]) -> bool:
    return "prompt" in columns and "completion" in columns


def convert(row: Mapping[str, Any]) -> Conversation:
    """Only the completion is trained on, even if the prompt contains earlier answers.

    With `tools`, a completion that is a list of calls, or its JSON text, becomes tool calls. `reasoning_content` is the
    thought of a completion that is a text.
    """
    prompt = _part(row.get("prompt"), "prompt", "user")
    schemas = tools(row.get("tools"))
    completion = (_calls(row.get("completion")) if schemas else []) or _part(
        row.get("completion"), "completion", "assistant"
    )
    if is_text(row.get("completion")) and is_text(thought := row.get("reasoning_content")) and thought.strip():
        completion[0]["reasoning_content"] = thought
    if prompt and completion:
        require_question(prompt[-1]["role"], completion[0]["role"])
    for message in prompt:
        if message["role"] == "assistant":
            message["train"] = False
    system = system_message(row.get("system")) if not prompt or prompt[0]["role"] != "system" else []
    return checked([*system, *prompt, *completion], schemas)


def _calls(completion: Any) -> list[Message]:
    """A turn with tool calls, from a list of `{"name", "arguments"}` or its JSON text; empty for other completions."""
    listing = listed(completion)
    if not isinstance(listing, list) or not all(isinstance(each, dict) and "arguments" in each for each in listing):
        return []
    try:
        return [{"role": "assistant", "content": "", "tool_calls": tool_calls(listing)}]
    except BadRow:
        return []


def _part(value: Any, name: str, role: str) -> list[Message]:
    if isinstance(value, list):
        return messages_of(value)
    if value is None:
        raise BadRow("no answer" if role == "assistant" else "no question", f"{name} is missing or null")
    if not is_text(value):
        raise not_text(name, value)
    return [{"role": role, "content": value}]
