"""Common parts of all formats: texts, checks of turns, tool calls and tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeGuard

from ascendtune.data.conversation import BadRow, Conversation, Message
from ascendtune.data.json_rows import kind_of


def is_text(value: Any) -> TypeGuard[str]:
    """Whether `value` is a string that can be encoded: JSON can escape a lone surrogate, which is not a character."""
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def not_text(name: str, value: Any) -> BadRow:
    detail = "half a surrogate pair" if isinstance(value, str) else kind_of(value)
    return BadRow("not text", f"{name} is {detail}")


def text_of_parts(value: Any) -> Any:
    """The text of parts `[{"text": "…"}]`, or of Gemini's `{"parts": [{"text": "…"}]}`; others are returned
    unchanged."""
    parts = value.get("parts") if isinstance(value, dict) else value
    if isinstance(parts, list) and parts and all(isinstance(part, dict) and part.keys() == {"text"} for part in parts):
        return "".join(part["text"] for part in parts) if all(is_text(part["text"]) for part in parts) else value
    return value


def system_message(value: Any) -> list[Message]:
    """A list of one message, or an empty one if `value` is missing or empty."""
    value = text_of_parts(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        return []
    if not is_text(value):
        raise not_text("system", value)
    return [{"role": "system", "content": value}]


def checked(messages: list[Message], tools: list[dict[str, Any]] | None = None) -> Conversation:
    """The conversation, if questions are not empty, tool results follow calls, and an answer ends it.

    The chat template decides which orders of turns are valid.
    """
    if not messages:
        raise BadRow("no messages", "the list is empty")
    for number, message in enumerate(messages, 1):
        role = message["role"]
        # The call may be part of the text of the previous answer.
        if role == "tool" and (number == 1 or messages[number - 2]["role"] not in ("assistant", "tool")):
            raise BadRow("wrong order of turns", f"turn {number} answers a tool call that does not exist")
        # An earlier answer may be empty: the model ends its turn at once.
        may_be_empty = role == "tool" or (role == "assistant" and number < len(messages))
        if not message["content"].strip() and not may_be_empty and not message.get("tool_calls"):
            raise BadRow("no answer" if role == "assistant" else "no question", f"turn {number} ({role}) is empty")
    if role != "assistant":
        raise BadRow("ends without an assistant turn", f"the last turn is {role}")
    if not any(message["role"] == "assistant" and message.get("train", True) for message in messages):
        raise BadRow("no label", "every assistant turn has weight 0")
    return Conversation(messages, tools)


def require_question(last_of_prompt: str | None, first_of_answer: str | None) -> None:
    """Raise if a prompt, by the roles of the turns, ends with an answer: the template would write two answers in a row,
    while TRL lets the second one continue the first."""
    if last_of_prompt == first_of_answer == "assistant":
        raise BadRow("the prompt ends with an answer", "the answer would follow it as a turn of its own")


def listed(value: Any) -> Any:
    """Parse lists and objects that CSV and some JSON files store as JSON text; other values are returned unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def tool_calls(value: Any) -> list[dict[str, Any]]:
    """Calls from `{"name", "arguments"}`, or OpenAI's `{"type", "function": {…}}`, or a list of them, or their JSON
    text.

    Arguments become objects: each template serializes them in its own way.
    """
    value = listed(value)
    calls = []
    for call in value if isinstance(value, list) else [value]:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not is_text(function.get("name")):
            raise BadRow("unreadable tool call", "a call needs a name and arguments")
        arguments = function.get("arguments")
        arguments = {} if arguments in (None, "") else listed(arguments)
        if not isinstance(arguments, dict) or not _is_json(arguments):
            raise BadRow("unreadable tool call", f"the arguments of {function['name']} are not a JSON object")
        openai_call: dict[str, Any] = {
            "type": "function",
            "function": {"name": function["name"], "arguments": arguments},
        }
        if is_text(call.get("id")):
            openai_call["id"] = call["id"]
        calls.append(openai_call)
    if not calls:
        raise BadRow("unreadable tool call", "the list of calls is empty")
    return calls


def tools(value: Any) -> list[dict[str, Any]] | None:
    """Schemas in OpenAI's form, from that form or from bare `{"name", "description", "parameters"}`; None without
    tools."""
    value = listed(value)
    if value in (None, "", "null", [], {}):
        return None
    schemas = []
    for schema in value if isinstance(value, list) else [value]:
        schema = listed(schema)
        function = schema.get("function", schema) if isinstance(schema, dict) else None
        if not isinstance(function, dict) or not is_text(function.get("name")) or not _is_json(schema):
            raise BadRow("unreadable tools", "tools must be a list of schemas, each with a name")
        if (empty := _null_parameter(function)) is not None:
            # Exports of tables add the keys of all rows to every schema, and to every call.
            detail = f"the parameter '{empty}' of {function['name']} is null; leave nulls out here and in calls"
            raise BadRow("unreadable tools", detail)
        if "function" not in schema:
            # OpenAI's Responses have the type beside the name.
            schema = {"type": "function", "function": {key: schema[key] for key in schema if key != "type"}}
        schemas.append(schema)
    return schemas


def template_options(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Variables for the chat template, named as in TRL; None without variables."""
    options = listed(row.get("chat_template_kwargs"))
    if options in (None, "", "null", {}):
        return None
    if not isinstance(options, dict):
        raise BadRow("unreadable chat_template_kwargs", f"an object is needed, this is {kind_of(options)}")
    return options


def _null_parameter(function: dict[str, Any]) -> str | None:
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    found = properties.items() if isinstance(properties, dict) else ()
    return next((name for name, schema in found if schema is None), None)


def _is_json(value: Any) -> bool:
    """Whether `value` is valid as JSON, as which templates write calls and schemas; Parquet also stores dates."""
    try:
        return is_text(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return False
