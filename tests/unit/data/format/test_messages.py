from __future__ import annotations

import json
from typing import Any

import pytest

from ascendtune.data.conversation import BadRow, Conversation
from ascendtune.data.format.choose import returning_bad_rows
from ascendtune.data.format.messages import convert as convert_messages

convert = returning_bad_rows(convert_messages)

_USER = {"role": "user", "content": "q"}
_ANSWER = {"role": "assistant", "content": "a"}
_CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}


def _converted(*messages: Any, **columns: Any) -> Conversation:
    made = convert({"messages": list(messages), **columns})
    assert isinstance(made, Conversation), made
    return made


def test_a_dialogue_stays_as_it_is() -> None:
    turns = [{"role": "system", "content": "s"}, _USER, _ANSWER, _USER, _ANSWER]
    assert _converted(*turns).messages == turns


def test_developer_is_system_and_an_empty_system_turn_is_none() -> None:
    assert _converted({"role": "developer", "content": "s"}, _USER, _ANSWER).messages[0] == {
        "role": "system",
        "content": "s",
    }
    for empty in ({"content": ""}, {"content": None}, {}):
        assert _converted({"role": "system", **empty}, _USER, _ANSWER).messages == [_USER, _ANSWER]


def test_the_system_column_is_used_where_the_messages_have_none() -> None:
    assert _converted(_USER, _ANSWER, system="s").messages[0]["content"] == "s"
    assert _converted({"role": "system", "content": "own"}, _USER, _ANSWER, system="s").messages[0]["content"] == "own"


def test_tool_calls_keep_their_ids_and_arguments_become_objects() -> None:
    made = _converted(
        _USER,
        {"role": "assistant", "content": None, "tool_calls": [_CALL, _CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": ""},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        _ANSWER,
        tools='[{"name": "add", "parameters": {}}]',
    )
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"x": 1}}}
    assert made.messages[1] == {"role": "assistant", "content": "", "tool_calls": [call, call]}
    assert made.messages[2] == {"role": "tool", "content": "", "tool_call_id": "c1"}
    assert made.tools == [{"type": "function", "function": {"name": "add", "parameters": {}}}]


def test_a_conversation_may_end_with_a_tool_call() -> None:
    assert _converted(_USER, {"role": "assistant", "tool_calls": [_CALL]}).messages[-1]["content"] == ""


@pytest.mark.parametrize("key", ["text", "value"])
def test_parts_of_text_are_joined(key: str) -> None:
    parts = [{"type": "text", key: "one "}, {"type": "text", key: "two"}]
    assert _converted({"role": "user", "content": parts}, _ANSWER).messages[0]["content"] == "one two"


@pytest.mark.parametrize("key", ["weight", "loss_weight", "loss_scale", "loss", "train"])
def test_weight_zero_takes_a_turn_out_of_the_loss(key: str) -> None:
    is_truth = key in ("loss", "train")
    zero = {**_ANSWER, key: False if is_truth else 0}
    made = _converted({**_USER, key: 0}, zero, _USER, {**_ANSWER, key: True if is_truth else 1.0})
    assert [message.get("train") for message in made.messages] == [None, False, None, None]


@pytest.mark.parametrize("content", [None, "I look."])
def test_tool_call_turns_of_ms_swift_are_calls_of_one_turn(content: str | None) -> None:
    calls = [{"type": "function", "function": {"name": "weather", "arguments": {"city": city}}} for city in "ab"]
    turns = [{"role": "tool_call", "content": json.dumps(call["function"]), "loss": False} for call in calls]
    results = [{"role": "tool_response", "content": "7"}, {"role": "function_response", "content": "9"}]
    before = [] if content is None else [{"role": "assistant", "content": content}]
    made = _converted(_USER, *before, *turns, *results, _ANSWER)
    calling = {"role": "assistant", "content": content or "", "tool_calls": calls}
    expected = calling if content else {**calling, "train": False}
    assert made.messages == [_USER, expected, *({**each, "role": "tool"} for each in results), _ANSWER]


@pytest.mark.parametrize("answer", [{"role": "Assistant", "content": "a"}, {"from": "gpt", "value": "a"}])
def test_tool_call_turns_belong_to_the_answer_before_however_its_role_is_written(answer: dict[str, Any]) -> None:
    call = {"role": "tool_call", "content": '{"name": "weather", "arguments": {}}'}
    made = _converted(_USER, answer, call, {"role": "tool", "content": "7"}, _ANSWER)
    assert [len(message.get("tool_calls", [])) for message in made.messages] == [0, 1, 0, 0]


@pytest.mark.parametrize("empty", ["[]", "null", {"name": None, "arguments": None}], ids=str)
def test_tool_call_turns_follow_an_answer_whose_calls_a_table_writes_as_none(empty: object) -> None:
    call = {"role": "tool_call", "content": '{"name": "weather", "arguments": {}}', "tool_calls": empty}
    made = _converted(_USER, {**_ANSWER, "tool_calls": empty}, call, {"role": "tool", "content": "7"}, _ANSWER)
    assert [len(message.get("tool_calls", [])) for message in made.messages] == [0, 1, 0, 0]


@pytest.mark.parametrize(
    "thought",
    [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]},
        {"type": "reasoning", "text": "hm"},
    ],
)
def test_a_part_before_the_text_may_be_the_thought(thought: dict[str, Any]) -> None:
    text = {"type": "text", "text": "a"}
    made = _converted(_USER, {"role": "assistant", "content": [thought, text]})
    assert made.messages[1] == {**_ANSWER, "reasoning_content": "hm"}
    for turn in ({"role": "assistant", "content": [text, thought]}, {"role": "user", "content": [thought, text]}):
        assert convert({"messages": [_USER, turn, _ANSWER]}).reason == "not only text"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "turns",
    [
        [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
        [{"role": "human", "value": "q"}, {"role": "Assistant", "value": "a"}],
        [{"role": "User", "content": "q", "value": None}, {"role": "persona", "from": "gpt", "content": "a"}],
    ],
)
def test_turns_may_be_in_sharegpts_words(turns: list[dict[str, Any]]) -> None:
    made = convert({"messages": turns})
    assert isinstance(made, Conversation)
    assert made.messages == [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning"])
def test_thoughts_have_the_names_that_transformers_reads(key: str) -> None:
    others = {"thinking": None, "reasoning": "" if key == "reasoning_content" else None}
    made = _converted(_USER, {**_ANSWER, **others, key: "hm"})
    assert made.messages[1] == {**_ANSWER, "reasoning_content": "hm"}


@pytest.mark.parametrize("key", ["tool_calls", "function_call"])
@pytest.mark.parametrize("empty", ["[]", "null", {"name": None, "arguments": None}], ids=str)
def test_exports_of_tables_have_turns_without_calls(key: str, empty: object) -> None:
    made = _converted(_USER, {**_ANSWER, key: empty}, tools="null")
    assert made.messages == [_USER, _ANSWER] and made.tools is None


def test_schemas_of_openais_responses_have_their_type_once() -> None:
    made = _converted(_USER, _ANSWER, tools=[{"type": "function", "name": "add", "parameters": {}, "strict": True}])
    function = {"name": "add", "parameters": {}, "strict": True}
    assert made.tools == [{"type": "function", "function": function}]


def test_tools_may_be_called_functions() -> None:
    """As in OpenAI's first rows with calls; a model would learn to call what it was not offered."""
    schema = {"name": "add", "description": "d", "parameters": {}}
    made = _converted(_USER, _ANSWER, functions=[schema])
    assert made.tools == [{"type": "function", "function": schema}]


def test_parts_of_openais_responses_are_text() -> None:
    asked = [{"type": "input_text", "text": "q"}]
    made = _converted(
        {"role": "user", "content": asked}, {**_ANSWER, "content": [{"type": "output_text", "text": "a"}]}
    )
    assert [message["content"] for message in made.messages] == ["q", "a"]


def test_nulls_from_parquet_are_absent() -> None:
    filled = {"name": None, "tool_calls": None, "reasoning_content": None, "weight": None}
    assert _converted({**_USER, **filled}, {**_ANSWER, **filled}, tools=None).messages == [_USER, _ANSWER]


def test_messages_as_json_text() -> None:
    made = convert({"messages": '[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]'})
    assert isinstance(made, Conversation) and made.messages == [_USER, _ANSWER]


@pytest.mark.parametrize(
    "messages",
    [
        [_ANSWER, _USER, _ANSWER],
        [_USER, _USER, _ANSWER],
        [_USER, _ANSWER, _ANSWER],
        [_USER, {"role": "system", "content": "s"}, _ANSWER],
        [_USER, {"role": "assistant", "content": ""}, _USER, _ANSWER],
        # Data of Hermes and ToolACE write calls into the text of answers.
        [_USER, _ANSWER, {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}, _ANSWER],
    ],
)
def test_the_order_of_turns_is_left_to_the_template(messages: list[Any]) -> None:
    assert _converted(*messages).messages == messages


def _assistant(**keys: Any) -> list[Any]:
    return [_USER, {**_ANSWER, **keys}]


@pytest.mark.parametrize(
    ("messages", "reason", "detail"),
    [
        ([], "no messages", "the list is empty"),
        (None, "no messages", "null"),
        ("hello", "no messages", "this is text"),
        ([{"role": "tool", "content": "1"}, _ANSWER], "wrong order of turns", "turn 1 answers a tool call"),
        ([_USER, {"role": "tool", "content": "1"}, _ANSWER], "wrong order of turns", "turn 2 answers a tool call"),
        ([_USER], "ends without an assistant turn", "the last turn is user"),
        ([_USER, _ANSWER, _USER], "ends without an assistant turn", "the last turn is user"),
        (_assistant(content=None), "no answer", "turn 2 (assistant) is empty"),
        ([{"role": "user", "content": " "}, _ANSWER], "no question", "turn 1 (user) is empty"),
        ([{"role": "bot", "content": "x"}], "unknown role", "'bot'"),
        ([{"role": "user", "text": "x"}], "no content", "it has role, text"),
        ([{"role": ["user"], "content": "x"}], "unknown role", "['user']"),
        ([{"content": "x"}], "unknown role", "None"),
        (["x"], "unreadable turn", "turn 1 is text"),
        (_assistant(content=7), "not text", "turn 2 is a number"),
        (_assistant(content=[{"type": "image_url"}]), "not only text", "'image_url'"),
        (_assistant(content=["x"]), "not only text", "None"),
        (
            _assistant(tool_calls=[{"function": {"name": "f", "arguments": "{"}}]),
            "unreadable tool call",
            "arguments of f",
        ),
        (_assistant(tool_calls=["f"]), "unreadable tool call", "a name"),
        (_assistant(loss_weight=0.5), "unsupported weight", "loss_weight 0.5"),
        (_assistant(weight=0), "no label", "weight 0"),
    ],
)
def test_bad_messages_row_is_named_with_its_reason(messages: Any, reason: str, detail: str) -> None:
    made = convert({"messages": messages})
    assert isinstance(made, BadRow), made
    assert made.reason == reason
    assert detail in made.detail


_OF_A_TABLE = {"name": "f", "parameters": {"properties": {"x": {"type": "string"}, "of_another_tool": None}}}


@pytest.mark.parametrize("tools", ["not json", [1], [{"type": "function"}], {"parameters": {}}, [_OF_A_TABLE]])
def test_unreadable_tools_make_a_bad_row(tools: Any) -> None:
    made = convert({"messages": [_USER, _ANSWER], "tools": tools})
    assert isinstance(made, BadRow) and made.reason == "unreadable tools"


@pytest.mark.parametrize("tools", [None, "", "[]", []])
def test_empty_tools_are_none(tools: Any) -> None:
    assert _converted(_USER, _ANSWER, tools=tools).tools is None


def test_parts_without_a_type_and_a_system_of_parts_are_text() -> None:
    """As Bedrock writes them, and Gemini."""
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "ab"}]
    bedrock = [
        {"role": "user", "content": [{"text": "q"}]},
        {"role": "assistant", "content": [{"text": "a"}, {"text": "b"}]},
    ]
    gemini = [{"role": "user", "parts": [{"text": "q"}]}, {"role": "model", "parts": [{"text": "a"}, {"text": "b"}]}]
    for messages, system in (
        (bedrock, [{"text": "s"}]), (gemini, {"role": "system", "parts": [{"text": "s"}]}), (said, "s"),
    ):  # fmt: skip
        made = convert({"messages": messages, "system": system})
        assert isinstance(made, Conversation)
        assert made.messages == [{"role": "system", "content": "s"}, *said]
    picture = [{"role": "user", "parts": [{"text": "q"}, {"inlineData": {}}]}, gemini[1]]
    assert isinstance(convert({"messages": picture}), BadRow)
