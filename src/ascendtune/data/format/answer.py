"""Common part of preference and unpaired rows: a prompt in any form, and an answer; only the answer is trained on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ascendtune.data.conversation import BadRow, Conversation
from ascendtune.data.format import alpaca, sharegpt
from ascendtune.data.format.messages import role_of
from ascendtune.data.format.turns import is_text, listed, not_text, require_question

PROMPT_WORDS = ("prompt", "instruction", "input", "history", "conversations", "messages", "system", "tools")
_FORMS = ("prompt", "conversations", "messages")


def answered(row: Mapping[str, Any], name: str) -> Conversation:
    """The row's prompt with its column `name` as the answer.

    The prompt is a text or a list of turns (`prompt`, `conversations`, `messages`), or an instruction with its input.
    The answer is a text, a turn, or a list of turns; a list that does not begin with the assistant is a whole
    conversation and repeats the prompt, if there is one. Without a prompt the answer may be a transcript of turns that
    begin with "Human:" and "Assistant:"; a prompt may be such a transcript that ends with "Assistant:".
    """
    answer = row.get(name)
    if answer is None or answer == []:
        raise BadRow("no answer", f"{name} is missing or empty")
    prompt = next((row[form] for form in _FORMS if row.get(form) is not None), None)
    if prompt is None and row.get("instruction") is not None:
        if is_text(answer):
            return only_the_last_turn(alpaca.convert({**row, "output": answer}))
        instruction_turns = alpaca.convert({**row, "output": "."}).messages[:-1]
        prompt = [message for message in instruction_turns if message["role"] != "system"]
    if prompt is None:
        turns = _turns_of_transcript(answer) or listed(answer)
        if not isinstance(turns, list):
            raise BadRow("no question", f"{name} is not a list of turns, and there is no prompt")
        return conversation(row, turns)
    # A prompt that is a text is not parsed, even if it looks like JSON.
    turns = prompt if row.get("prompt") is not None else listed(prompt)
    question = _turns_before_answer(turns) or _turns(turns, "human", "prompt")
    if isinstance(answer, list) and role_of(answer[0]) not in (None, "assistant"):
        if not _repeats(answer, question):
            raise BadRow("prompts that differ", f"{name} is a whole conversation that does not contain this prompt")
        return conversation(row, answer)
    answer_turns = _turns(answer, "gpt", name)
    require_question(role_of(question[-1]) if question else None, role_of(answer_turns[0]))
    return conversation(row, [*question, *answer_turns])


def conversation(row: Mapping[str, Any], turns: Any) -> Conversation:
    """A conversation from turns in ShareGPT's or OpenAI's form, with the row's system message and tools."""
    values = {"conversations": turns, "tools": row.get("tools"), "system": row.get("system")}
    return only_the_last_turn(sharegpt.convert(values))


def only_the_last_turn(conversation: Conversation) -> Conversation:
    """The conversation with all but the last turn as context."""
    *earlier, last = conversation.messages
    if not last.get("train", True):
        raise BadRow("no label", "the last turn has weight 0")
    for message in earlier:
        if message["role"] == "assistant":
            message["train"] = False
    return conversation


def _turns(value: Any, speaker: str, name: str) -> list[Any]:
    """A text or a turn as a list of turns; a list is returned unchanged."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        return [value]
    if not is_text(value):
        raise not_text(name, value)
    return [{"from": speaker, "value": value}]


_SPEAKERS = {"Human": "human", "Assistant": "gpt"}
_SPEAKER = re.compile(r"(?:^|\n\n)(Human|Assistant): ?")


def _turns_of_transcript(text: Any) -> list[dict[str, str]]:
    """The turns of a conversation as Anthropic's HH-RLHF writes it (arXiv 2204.05862); an empty list for other text.

    It begins with "Human:", and every turn with two line breaks and its speaker.
    """
    if not is_text(text) or not text.lstrip().startswith("Human:") or "\n\nAssistant:" not in text:
        return []
    # Text before the first speaker, which is empty here, then alternating speakers and texts.
    _, *parts = _SPEAKER.split(text.lstrip())
    return [
        {"from": _SPEAKERS[speaker], "value": text.strip()}
        for speaker, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def _turns_before_answer(prompt: Any) -> list[dict[str, str]]:
    """The turns of a transcript that ends with the assistant's turn; an empty list for other prompts."""
    *turns, last = _turns_of_transcript(prompt) or [{}]
    return turns if last == {"from": "gpt", "value": ""} else []


def _repeats(turns: list[Any], question: list[Any]) -> bool:
    """Whether a conversation contains the question, perhaps in another form, and after a system message."""
    contents = [_content(turn) for turn in turns]
    return all(_content(turn) in contents for turn in question)


def _content(turn: Any) -> Any:
    return turn.get("content", turn.get("value")) if isinstance(turn, dict) else None
