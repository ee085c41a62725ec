"""Plain text in a column `text`: TXT files line by line, web text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ascendtune.data.conversation import BadRow, Conversation, Text
from ascendtune.data.format.turns import is_text, not_text

TASKS = ("conversations", "text")
WORDS = ("text",)

_OF_CONVERSATIONS = ("prompt", "completion", "instruction", "output", "messages", "conversations")
"""Beside one of these columns the text may be a conversation rendered by a template, from columns with other names.

Columns of a new format need not be added: `choose_format` chooses text only if no other format matches.
"""


def matches(columns: Collection[str]) -> bool:
    return "text" in columns and not any(column in columns for column in _OF_CONVERSATIONS)


def convert(row: Mapping[str, Any]) -> Conversation:
    """The text as an assistant's turn without a question: `data.template` adds its text around it."""
    return Conversation([{"role": "assistant", "content": convert_to_text(row).text}])


def convert_to_text(row: Mapping[str, Any]) -> Text:
    """The text unchanged, for pretraining."""
    text = row.get("text")
    if text is None:
        raise BadRow("no text", "text is missing or null")
    if not is_text(text):
        raise not_text("text", text)
    if not text.strip():
        raise BadRow("no text", "the text is empty")
    return Text(text)
