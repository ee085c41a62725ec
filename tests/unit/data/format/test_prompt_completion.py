from __future__ import annotations

import json
from typing import Any

import pytest

from ascendtune.data.conversation import BadRow, Conversation
from ascendtune.data.format import prompt_completion
from ascendtune.data.format.choose import returning_bad_rows

convert = returning_bad_rows(prompt_completion.convert)

_USER = {"role": "user", "content": "q"}
_ANSWER = {"role": "assistant", "content": "a"}


def test_two_texts_are_two_turns_letter_by_letter() -> None:
    made = convert({"prompt": " q ", "completion": " a\n", "system": "s"})
    assert isinstance(made, Conversation)
    assert [message["content"] for message in made.messages] == ["s", " q ", " a\n"]


@pytest.mark.parametrize("thought", ["hm", " ", None, ["hm"]])
def test_a_thought_in_a_column_of_its_own_is_that_of_the_answer(thought: Any) -> None:
    made = convert({"prompt": "q", "completion": "a", "reasoning_content": thought})
    assert isinstance(made, Conversation)
    assert made.messages == [_USER, _ANSWER | ({"reasoning_content": "hm"} if thought == "hm" else {})]


def test_answers_inside_the_prompt_are_not_learnt() -> None:
    made = convert({"prompt": [_USER, _ANSWER, _USER], "completion": [_ANSWER]})
    assert isinstance(made, Conversation)
    assert made.messages == [_USER, {**_ANSWER, "train": False}, _USER, _ANSWER]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "q"}, "no answer"),
        ({"prompt": "q", "completion": ""}, "no answer"),
        ({"completion": "a"}, "no question"),
        ({"prompt": "q", "completion": []}, "ends without an assistant turn"),
        ({"prompt": 1, "completion": "a"}, "not text"),
        ({"prompt": [_USER], "completion": [_USER]}, "ends without an assistant turn"),
        ({"prompt": [_USER, _ANSWER], "completion": [_ANSWER]}, "the prompt ends with an answer"),
        ({"prompt": [_USER, _ANSWER], "completion": "a"}, "the prompt ends with an answer"),
    ],
)
def test_bad_prompt_completion_row_is_named_with_its_reason(row: dict[str, Any], reason: str) -> None:
    made = convert(row)
    assert isinstance(made, BadRow)
    assert made.reason == reason


def test_beside_tools_a_list_of_calls_calls_them() -> None:
    tools = json.dumps([{"name": "weather", "parameters": {}}])
    calls = json.dumps([{"name": "weather", "arguments": {"city": "Ulm"}}])
    made = convert({"prompt": "Weather in Ulm?", "completion": calls, "tools": tools})
    assert isinstance(made, Conversation)
    assert made.messages[-1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Ulm"}}
    made = convert({"prompt": "Weather in Ulm?", "completion": calls})
    assert isinstance(made, Conversation) and made.messages[-1]["content"] == calls
    made = convert({"prompt": "Weather in Ulm?", "completion": "[1, 2]", "tools": tools})
    assert isinstance(made, Conversation) and made.messages[-1]["content"] == "[1, 2]"
