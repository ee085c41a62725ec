from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ascendtune.data.conversation import BadRow, Conversation
from ascendtune.data.format import sharegpt
from ascendtune.data.format.choose import returning_bad_rows
from ascendtune.data.template import ChatTemplate
from ascendtune.data.tokenizer import Tokenizer

convert = returning_bad_rows(sharegpt.convert)


def _turns(*pairs: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"from": speaker, "value": value} for speaker, value in pairs]


def test_speakers_become_roles() -> None:
    made = convert(
        {"conversations": _turns(("system", "s"), ("human", "q"), ("gpt", "a"), ("user", "r"), ("assistant", "b"))}
    )
    assert isinstance(made, Conversation)
    assert [message["role"] for message in made.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert [message["content"] for message in made.messages] == ["s", "q", "a", "r", "b"]


def test_turns_may_be_in_openais_words() -> None:
    made = convert({"conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})
    assert isinstance(made, Conversation) and made.messages[1] == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize("speaker", ["chatgpt", "bing", "bard", "model", "GPT"])
def test_speakers_of_collected_chats_are_assistants(speaker: str) -> None:
    made = convert({"conversations": _turns(("Human", "q"), (speaker, "a"))})
    assert isinstance(made, Conversation)
    assert [message["role"] for message in made.messages] == ["user", "assistant"]


@pytest.mark.parametrize("between", ["", "\n", "\n\n"], ids=repr)
@pytest.mark.parametrize("name", ["qwen", "qwen3", "qwen3_nothink"])
def test_a_thought_before_a_function_call_is_kept(name: str, between: str, tiny_model: Path) -> None:
    call = "<think>\nhm\n</think>" + between + '{"name": "add", "arguments": {"x": 1}}'
    made = convert({"conversations": _turns(("human", "q"), ("function_call", call))})
    assert isinstance(made, Conversation)
    text = ChatTemplate.load(name, Tokenizer.load(tiny_model)).render(made).text
    assert '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>' in text


@pytest.mark.parametrize("listed", [False, True])
def test_a_function_call_becomes_a_tool_call_with_an_object(listed: bool) -> None:
    call = '{"name": "add", "arguments": {"x": [1]}}'
    row = {
        "conversations": _turns(
            ("human", "q"), ("function_call", f"[{call}]" if listed else call), ("observation", "1"), ("gpt", "a")
        ),
        "tools": '[{"name": "add"}]',
        "system": "s",
    }
    made = convert(row)
    assert isinstance(made, Conversation)
    function = {"name": "add", "arguments": {"x": [1]}}
    assert made.messages == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "a"},
    ]
    assert made.tools == [{"type": "function", "function": {"name": "add"}}]


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        (None, "no messages"),
        (_turns(("human", "q"), ("narrator", "a")), "unknown role"),
        (_turns(("human", "q"), ("gpt", None)), "no answer"),
        (_turns(("gpt", "a"), ("human", "q")), "ends without an assistant turn"),
        (_turns(("human", "q"), ("function_call", "add(1)")), "unreadable tool call"),
        (_turns(("human", "q"), ("function_call", None)), "unreadable tool call"),
        (_turns(("human", "q"), ("gpt", {"a": 1})), "not text"),
    ],
)
def test_bad_sharegpt_row_is_named_with_its_reason(turns: Any, reason: str) -> None:
    made = convert({"conversations": turns})
    assert isinstance(made, BadRow), made
    assert made.reason == reason


def test_turn_of_an_unknown_speaker_is_counted_from_one() -> None:
    made = convert({"conversations": _turns(("human", "q"), ("narrator", "a"))})
    assert isinstance(made, BadRow) and made.detail.startswith("turn 2 has the role 'narrator'")


def test_a_question_and_its_answer_in_one_turn_are_two() -> None:
    made = convert({"conversations": [{"human": "q", "assistant": "a"}, {"human": "r", "assistant": "b"}]})
    assert isinstance(made, Conversation)
    assert [message["content"] for message in made.messages] == ["q", "a", "r", "b"]
    assert [message["role"] for message in made.messages] == ["user", "assistant"] * 2


def test_turns_of_xtuner_are_question_and_answer() -> None:
    turns = [{"system": "s", "input": "q", "output": "a", "output_with_loss": False}, {"input": "r", "output": "b"}]
    made = convert({"conversations": turns})
    assert isinstance(made, Conversation)
    said = [(message["role"], message["content"], message.get("train", True)) for message in made.messages]
    first = [("system", "s", True), ("user", "q", True), ("assistant", "a", False)]
    assert said == [*first, ("user", "r", True), ("assistant", "b", True)]


def test_texts_without_speakers_are_said_in_turn() -> None:
    """LIMA's conversations."""
    made = convert({"conversations": ["q", "a", "more", "b"]})
    assert isinstance(made, Conversation)
    assert [(each["role"], each["content"]) for each in made.messages] == [
        ("user", "q"), ("assistant", "a"), ("user", "more"), ("assistant", "b"),
    ]  # fmt: skip


def test_texts_in_turn_end_with_the_last_answer() -> None:
    made = convert({"conversations": ["Hello.", "Hi.", "A beer?"]})
    assert isinstance(made, Conversation)
    assert [(each["role"], each["content"]) for each in made.messages] == [("user", "Hello."), ("assistant", "Hi.")]
    alone = convert({"conversations": ["Hello."]})
    assert isinstance(alone, BadRow) and alone.reason == "ends without an assistant turn"
