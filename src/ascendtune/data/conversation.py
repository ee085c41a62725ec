"""One training row in the one form that every format is turned into."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict


class Message(TypedDict, total=False):
    """One turn, in OpenAI's words.

    `role` is system, user, assistant or tool. `content` is text (may be empty when there are `tool_calls`).
    `tool_calls` is `[{"type": "function", "function": {"name": …, "arguments": {…}}}]`. `train: False` on an assistant
    turn takes it out of the loss.
    """

    role: str
    content: str
    tool_calls: list[dict[str, Any]]
    name: str
    reasoning_content: str
    train: bool


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order, ending with an assistant turn; `tools` are JSON schemas offered to the model."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class BadRow:
    """A readable row that cannot be trained on, and why: "no answer", "the first turn is the assistant's", …"""

    reason: str
    place: str
    """`file:line` (text files) or `file, row n` (from 1)."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row as read: its values and its place, for messages."""

    values: dict[str, Any] = field(hash=False)
    place: str = ""
