from __future__ import annotations

from typing import Any

import pytest

from ascendtune.data.conversation import BadRow, Conversation
from ascendtune.data.format.prompt_completion import convert

_USER = {"role": "user", "content": "q"}
_ANSWER = {"role": "assistant", "content": "a"}


def test_two_texts_are_two_turns_letter_by_letter() -> None:
    made = convert({"prompt": " q ", "completion": " a\n", "system": "s"})
    assert isinstance(made, Conversation)
    assert [message["content"] for message in made.messages] == ["s", " q ", " a\n"]


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
    ],
)
def test_bad_prompt_completion_row_is_named_with_its_reason(row: dict[str, Any], reason: str) -> None:
    made = convert(row)
    assert isinstance(made, BadRow)
    assert made.reason == reason
