"""Detects what a template omits although it is trained on or required: tools, tool calls, the last thought."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from ascendtune.data.conversation import Conversation, Message

if TYPE_CHECKING:
    from ascendtune.data.spans import Template

_MARK = "_c4119d"


def omission(template: Template, conversation: Conversation, text: str) -> str | None:
    """The reason why the template cannot be used for this conversation, rendered as `text`; None if nothing is omitted.

    Many templates write role and content only: a tool call would vanish, an empty turn be trained on. Others do not
    support thoughts: the answer would be trained on without its thought. Earlier thoughts may be omitted.
    """
    last = conversation.messages[-1]
    if reason := _omission_of_tools(template, conversation, text):
        return reason
    if last.get("train", True) and last.get("reasoning_content", "").strip() not in text:
        return "it does not write the thought (reasoning_content) of the last turn"
    if last.get("train", True) and _thought_within(last["content"]) not in text:
        return "it does not write the thought (before </think>) of the last turn"
    return None


def _thought_within(content: str) -> str:
    """The thought at the beginning of an answer; empty if there is none."""
    # `str` methods, because a placeholder watches its own methods (see `skeleton`).
    before, _, _ = str.rpartition(content, "</think>")
    return before.rpartition("<think>")[2].strip()


def _omission_of_tools(template: Template, conversation: Conversation, text: str) -> str | None:
    # Each name once: a long conversation calls a few functions thousands of times.
    calls = Counter(call["function"]["name"] for call in _calls_in(conversation.messages))
    offered = {str(tool.get("function", tool).get("name", "")) for tool in conversation.tools or ()}
    for what, names in (("tool calls", calls), ("tools", offered)):
        if any(name not in text for name in names):
            return f"it does not write {what}"
    contents = [message["content"] for message in conversation.messages]
    elsewhere = "\0".join([*contents, json.dumps(conversation.tools, ensure_ascii=False)])
    has_parallel = any(len(message.get("tool_calls", ())) > 1 for message in conversation.messages)
    if has_parallel or any(text.count(name) - elsewhere.count(name) < times for name, times in calls.items()):
        # The name may also be in a turn's text, in a tool or in another call: unique names are used to find calls.
        marked = _with_calls_marked(conversation.messages)
        text, _ = template.text_of(marked, conversation.tools)
        written = [call["function"]["name"] in text for call in _calls_in(marked)]
        if not all(written):
            return f"it {'writes only some of the' if any(written) else 'does not write'} tool calls"
    return None


def leaves_out_text_of_calls(template: Template, conversation: Conversation, text: str) -> bool:
    """Whether the template omits the content of a turn with tool calls that is trained on, as Llama 3.1's does.

    It is a fact to report, not a fault: gpt-oss takes such content for a thought, and omits it if a later turn answers.
    """
    unseen = {
        number
        for number, message in enumerate(conversation.messages)
        if message.get("tool_calls") and message.get("train", True) and message["content"].strip() not in text
    }
    if not unseen:
        return False
    # A template may write the content in another form, or only the part of it behind a thought.
    marked: list[Message] = [
        {**message, "content": f"{_MARK}{number}e"} if number in unseen else message
        for number, message in enumerate(conversation.messages)
    ]
    written, _ = template.text_of(marked, conversation.tools)
    return any(f"{_MARK}{number}e" not in written for number in unseen)


def _calls_in(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    return (call for message in messages for call in message.get("tool_calls", ()))


def _with_calls_marked(messages: Sequence[Message]) -> list[Message]:
    """The messages with `_MARK` and a number appended to the names of called functions."""
    marked, numbers = list(messages), count(1)
    for at, message in enumerate(messages):
        if calls := message.get("tool_calls"):
            renamed = [
                {**each["function"], "name": f"{each['function']['name']}{_MARK}{next(numbers)}e"} for each in calls
            ]
            marked[at] = {
                **message,
                "tool_calls": [{**each, "function": new} for each, new in zip(calls, renamed, strict=True)],
            }
    return marked
