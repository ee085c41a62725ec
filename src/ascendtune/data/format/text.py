"""Plain text in a column `text`: TXT files line by line, web text. A row is what the model says, with no question."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ascendtune.data.conversation import BadRow, Conversation
from ascendtune.data.format.turns import is_text, not_text

WORDS = ("text",)

_OTHERS = ("prompt", "completion", "instruction", "output", "messages", "conversations")


def matches(columns: Collection[str]) -> bool:
    return "text" in columns and not any(column in columns for column in _OTHERS)


def convert(row: Mapping[str, Any]) -> Conversation | BadRow:
    """With `data.template: plain` nothing but the text and its end is written around it."""
    text = row.get("text")
    if text is None:
        return BadRow("no answer", "text is missing or null")
    if not is_text(text):
        return not_text("text", text)
    if not text.strip():
        return BadRow("no answer", "the text is empty")
    return Conversation([{"role": "assistant", "content": text}])
