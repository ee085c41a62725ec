"""Alpaca: an instruction, an optional input, and the output."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ascendtune.data.conversation import BadRow, Conversation, Message
from ascendtune.data.format.turns import checked, is_text, listed, not_text, system_message

TASKS = ("conversations",)
WORDS = ("instruction", "input", "output", "system", "history")


def matches(columns: Collection[str]) -> bool:
    return "instruction" in columns and "output" in columns


def convert(row: Mapping[str, Any]) -> Conversation:
    """The user's turn is instruction and input, on separate lines; `history` has earlier [question, answer] pairs."""
    instruction, given, answer = row.get("instruction"), row.get("input"), row.get("output")
    if answer is None:
        raise BadRow("no answer", "output is missing or null")
    for name, value in (("instruction", instruction), ("input", given), ("output", answer)):
        if value is not None and not is_text(value):
            raise not_text(name, value)
    messages = system_message(row.get("system"))
    if (history := row.get("history")) not in (None, "", []):
        messages += _turns_of(listed(history))
    question = f"{instruction}\n{given}" if instruction and given else instruction or given or ""
    messages.append({"role": "user", "content": question})
    messages.append({"role": "assistant", "content": answer})
    return checked(messages)


def _turns_of(history: Any) -> list[Message]:
    turns: list[Message] = []
    for pair in history if isinstance(history, list) else [history]:
        if not isinstance(pair, list) or len(pair) != 2 or not all(map(is_text, pair)):
            raise BadRow("unreadable history", "history must be a list of [question, answer] pairs")
        turns.append({"role": "user", "content": pair[0]})
        turns.append({"role": "assistant", "content": pair[1]})
    return turns
