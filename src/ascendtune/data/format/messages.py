"""OpenAI messages: a list of turns with `role` and `content`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import takewhile
from typing import Any

from ascendtune.data.conversation import BadRow, Conversation, Message
from ascendtune.data.format.turns import (
    checked,
    is_text,
    listed,
    not_text,
    system_message,
    text_of_parts,
    tool_calls,
    tools,
)
from ascendtune.data.json_rows import kind_of

TASKS = ("conversations",)
WORDS = ("messages", "tools", "functions", "system")

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "model": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "ai": "assistant",
    "tool": "tool",
    "function": "tool",
    "tool_response": "tool",
    "observation": "tool",
    "function_response": "tool",
}
"""Names of roles of OpenAI, Gemini, LangChain, ms-swift and ShareGPT -> OpenAI's."""

_CONTENTS = ("content", "value", "parts")

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys of a turn's thoughts, as transformers reads them: `thinking` is gpt-oss's, `reasoning` vLLM's."""

_THOUGHTS = ("thinking", "reasoning")
"""Types of parts at the beginning of a turn: Anthropic's and Mistral's thoughts, and OpenAI's."""

_TEXTS = ("text", "input_text", "output_text")
"""Types of parts with text; the latter two are those of OpenAI's Responses."""


def matches(columns: Collection[str]) -> bool:
    return "messages" in columns


def convert(row: Mapping[str, Any]) -> Conversation:
    """`system` is used if the messages do not begin with a system message; `tools` are the schemas of the tools, which
    OpenAI first called `functions`."""
    messages = messages_of(row.get("messages"))
    if messages and messages[0]["role"] != "system":
        messages = system_message(row.get("system")) + messages
    return checked(messages, tools(row.get("tools") or row.get("functions")))


def messages_of(value: Any) -> list[Message]:
    """Messages from a list in OpenAI's form; their order is not checked."""
    value = listed(value)
    if not isinstance(value, list):
        raise BadRow("no messages", f"a list of turns is needed, this is {kind_of(value)}")
    messages: list[Message] = []
    for number, turn in enumerate(_with_calls_in_turns(value), 1):
        message = _message_of(turn, number)
        # Exporters write an empty system turn if there is none.
        if message["role"] != "system" or message["content"].strip():
            messages.append(message)
    return messages


def role_of(turn: Any) -> str | None:
    """The role of a turn, with OpenAI's name; None if it is unknown."""
    named = [turn.get(key) for key in ("role", "from")] if isinstance(turn, dict) else []
    return next((_ROLES[each.lower()] for each in named if isinstance(each, str) and each.lower() in _ROLES), None)


def _with_calls_in_turns(turns: list[Any]) -> list[Any]:
    """The turns, with ms-swift's turns `tool_call`, each a call as JSON text, moved into the previous assistant
    turn."""
    merged: list[Any] = []
    for turn in turns:
        if not isinstance(turn, dict) or turn.get("role") != "tool_call":
            merged.append(turn)
            continue
        answers = bool(merged) and role_of(merged[-1]) == "assistant"
        before = merged.pop() if answers else {**turn, "role": "assistant", "content": None}
        earlier = _calls_of(before) or []
        calls = earlier if isinstance(earlier, list) else [earlier]
        merged.append({**before, "tool_calls": [*calls, listed(turn.get("content"))]})
    return merged


def _message_of(turn: Any, number: int) -> Message:
    if not isinstance(turn, dict):
        raise BadRow("unreadable turn", f"turn {number} is {kind_of(turn)}, not an object with role and content")
    # ShareGPT has from and value in place of role and content, Gemini parts in place of content.
    role = role_of(turn)
    if role is None:
        named = turn.get("role", turn.get("from"))
        raise BadRow("unknown role", f"turn {number} has the role {named!r}; known: {', '.join(_ROLES)}")
    # In Parquet a turn whose content is null has only its role.
    if role in ("system", "user") and turn.keys().isdisjoint(_CONTENTS) and len(turn) > 1:
        raise BadRow("no content", f"turn {number} has no content; it has {', '.join(map(str, turn))}")
    value: Any = next((turn[key] for key in _CONTENTS if turn.get(key) is not None), None)
    leading = list(takewhile(_is_thought, value)) if role == "assistant" and isinstance(value, list) else []
    content = _content_of(text_of_parts(value[len(leading) :] if leading else value), number)
    message: Message = {"role": role, "content": content}
    if thought := _thought_of(leading, number):
        message["reasoning_content"] = thought
    if calls := _calls_of(turn):
        message["tool_calls"] = tool_calls(calls)
    for key in ("name", "tool_call_id"):
        if is_text(text := turn.get(key)):
            message[key] = text
    if (reasoning := next((turn[key] for key in _REASONING if is_text(turn.get(key))), None)) is not None:
        message["reasoning_content"] = reasoning
    return _weighted(message, turn, number)


def _calls_of(turn: dict[str, Any]) -> Any:
    """The calls of a turn; None if there are none: exports of tables then also write "[]", "null" or null keys."""
    calls = listed(turn.get("tool_calls") or turn.get("function_call"))
    has_only_nulls = isinstance(calls, dict) and not any(value is not None for value in calls.values())
    return None if has_only_nulls or calls == "null" else calls or None


def _is_thought(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in _THOUGHTS


def _thought_of(parts: list[dict[str, Any]], number: int) -> str:
    """`{"type": "thinking", "thinking": …}`, whose value is a text or, from Mistral, a list of texts."""
    return "\n".join(_content_of(part.get(part["type"], part.get("text")), number) for part in parts)


def _content_of(content: Any, number: int) -> str:
    if content is None:
        return ""
    if is_text(content):
        return content
    if not isinstance(content, list):
        raise not_text(f"turn {number}", content)
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXTS:
            raise BadRow("not only text", f"turn {number} has a part of type {kind!r}; only text is supported")
        text = part.get("text") if part.get("text") is not None else part.get("value")
        if not is_text(text):
            raise not_text(f"a part of turn {number}", text)
        texts.append(text)
    return "".join(texts)


def _weighted(message: Message, turn: dict[str, Any], number: int) -> Message:
    """Add the turn's weight. `weight` is OpenAI's key, `loss_weight` LLaMA-Factory's, `loss` and `loss_scale` are
    ms-swift's, `train` ascendtune's. Only assistant turns have one."""
    if message["role"] != "assistant":
        return message
    for key in ("weight", "loss_weight", "loss", "loss_scale", "train"):
        weight = turn.get(key)
        if weight is None:
            continue
        if weight not in (0, 1):
            raise BadRow("unsupported weight", f"turn {number} has {key} {weight}; it must be 1 (trained on) or 0")
        if not weight:
            message["train"] = False
    return message
