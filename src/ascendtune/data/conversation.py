"""Training rows in the forms that every format is converted to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict


class Message(TypedDict, total=False):
    """One turn, with the keys of OpenAI's messages.

    `role` is system, user, assistant or tool. `content` is text (may be empty when there are `tool_calls`).
    `tool_calls` is `[{"type": "function", "function": {"name": …, "arguments": {…}}}]`. `train: False` on an assistant
    turn excludes it from the loss. `tool_call_id` names the call that a tool turn answers, where the data say so.
    """

    role: str
    content: str
    tool_calls: list[dict[str, Any]]
    tool_call_id: str
    name: str
    reasoning_content: str
    train: bool


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order, ending with an assistant turn."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    """JSON schemas of the tools that the model may call."""
    options: dict[str, Any] | None = None
    """Variables for the chat template: `{"enable_thinking": false}`."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text without roles that is trained on completely."""

    text: str


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two answers to the same messages; only the last turn of each is trained on."""

    chosen: Conversation
    rejected: Conversation
    margin: float = 0.0
    """How much better the chosen answer is, if the data contain it."""


@dataclass(frozen=True, slots=True)
class UnpairedPreference:
    """One answer that is good or bad; only the last turn is trained on."""

    conversation: Conversation
    desirable: bool


Row = Conversation | Text | PreferencePair | UnpairedPreference


def with_options(row: Row, options: dict[str, Any]) -> Row:
    """The row with these variables for the chat template; a text has none."""
    match row:
        case PreferencePair():
            return replace(
                row, chosen=replace(row.chosen, options=options), rejected=replace(row.rejected, options=options)
            )
        case UnpairedPreference():
            return replace(row, conversation=replace(row.conversation, options=options))
        case Conversation():
            return replace(row, options=options)
        case Text():
            return row


def conversations_of(row: Row) -> tuple[Conversation, ...]:
    """The conversations of a row; an empty tuple for a text."""
    match row:
        case PreferencePair():
            return row.chosen, row.rejected
        case UnpairedPreference():
            return (row.conversation,)
        case Conversation():
            return (row,)
        case Text():
            return ()


@dataclass
class BadRow(Exception):
    """A readable row that cannot be trained on. Raised by formats; the place of the error is that of the row."""

    reason: str
    """Short, and the same for all rows with this fault: "no answer", "wrong order of turns", …"""
    detail: str = ""


class SourceFile:
    """A file that rows were read from. Finding the place of a row is slow and done only for messages."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def place(self, number: int) -> str:
        """`file:line` for the row that its reader numbered `number`."""
        return f"{self.path}:{number}"


@dataclass(slots=True)
class RawRow:
    """A row as read: its values, and the information for finding its place."""

    values: dict[str, Any]
    source: SourceFile
    number: int
    fault: BadRow | None = None
    """The fault that was found while reading, if any."""

    @property
    def place(self) -> str:
        """`file:line` (text files) or `file, row n` (from 1)."""
        return self.source.place(self.number)
