"""Prompts from a file: lines of text, or rows in any format of training, whose last answer is separated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ascendtune.core.errors import DataError
from ascendtune.data.conversation import BadRow, Conversation, Message, RawRow, conversations_of
from ascendtune.data.files import data_files
from ascendtune.data.format.answer import answered
from ascendtune.data.format.choose import Convert, choose_format, returning_bad_rows
from ascendtune.data.format.messages import messages_of
from ascendtune.data.format.turns import is_text, not_text, system_message, template_options, tools
from ascendtune.data.read import read_rows
from ascendtune.data.spec import DatasetSpec, Task

_TASKS: tuple[Task, ...] = ("conversations", "singles", "pairs")


@dataclass(frozen=True)
class Prompt:
    """A conversation that ends with a question."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    expected: str | None = None
    """The answer in the file."""
    options: dict[str, Any] | None = None
    """Variables of the chat template."""


def read_prompts(path: Path, system: str | None = None) -> list[Prompt]:
    """All rows of a file: text lines, `prompt`, `messages`, or a format of training.

    Args:
        system: a system message for rows that have none.

    Raises:
        DataError: the file cannot be read, or a row has no question; with file and line.
    """
    spec = DatasetSpec(path=str(path))
    data_files(spec)
    rows = list(read_rows(spec))
    convert, simple = None, returning_bad_rows(_simple)
    prompts = []
    for number, row in enumerate(rows):
        found = row.fault or simple(row.values)
        if found is None:
            convert = convert or _any_format(spec, rows[number : number + 100])
            converted = convert(row.values)
            # For a pair, the chosen answer.
            found = converted if isinstance(converted, BadRow) else conversations_of(converted)[0]
        prompts.append(_prompt(found, row, system))
    return prompts


def _any_format(spec: DatasetSpec, rows: list[RawRow]) -> Convert:
    """The function that converts rows of conversations, of answers with a label, or of pairs."""
    refusals: list[DataError] = []
    for task in _TASKS:
        try:
            return choose_format(spec, rows, task)[1]
        except DataError as error:
            refusals.append(error)
    raise refusals[0]


def _simple(row: Mapping[str, Any]) -> Conversation | None:
    """A prompt without an answer, or with the chosen one of two; None for other formats."""
    is_pair = row.get("prompt") is not None and row.get("chosen") is not None
    # The rejected answer is not needed here: it may be missing, or equal.
    found = answered(row, "chosen") if is_pair else _unanswered(row)
    return None if found is None else replace(found, options=template_options(row))


def _unanswered(row: Mapping[str, Any]) -> Conversation | None:
    turns = row.get("messages", row.get("text", None if "completion" in row else row.get("prompt")))
    if turns is None:
        return None
    if "messages" in row or isinstance(turns, list):
        messages = messages_of(turns)
    elif is_text(turns):
        messages = [{"role": "user", "content": turns}]
    else:
        raise not_text("the prompt", turns)
    system, schemas = system_message(row.get("system")), tools(row.get("tools") or row.get("functions"))
    has_system = bool(messages) and messages[0]["role"] == "system"
    return Conversation(messages if has_system else [*system, *messages], schemas)


def _prompt(conversation: Conversation | BadRow, row: RawRow, system: str | None) -> Prompt:
    if isinstance(conversation, BadRow):
        detail = f": {conversation.detail}" if conversation.detail else ""
        raise DataError(f"{conversation.reason}{detail}", code="bad-rows", remedy="fix this row", where=row.place)
    messages, expected = list(conversation.messages), None
    if messages and messages[-1]["role"] == "assistant":
        expected = messages.pop()["content"]
    if not messages or messages[-1]["role"] not in ("user", "tool"):
        remedy = "end the row with a user message, or with the answer to one"
        raise DataError("this row has no message to answer", code="bad-rows", remedy=remedy, where=row.place)
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return Prompt(messages, conversation.tools, expected, conversation.options)
