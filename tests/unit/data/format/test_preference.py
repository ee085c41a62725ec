from __future__ import annotations

import json
from typing import Any

import pytest

from ascendtune.data.conversation import BadRow, Conversation, PreferencePair
from ascendtune.data.format import preference
from ascendtune.data.format.choose import returning_bad_rows
from ascendtune.data.format.preference import matches

convert = returning_bad_rows(preference.convert)

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "q"}
EARLIER = [{"role": "user", "content": "before"}, {"role": "assistant", "content": "then", "train": False}]
GOOD, POOR = {"role": "assistant", "content": "good"}, {"role": "assistant", "content": "poor"}
SPOKEN = [{"from": "human", "value": "before"}, {"from": "gpt", "value": "then"}, {"from": "human", "value": "q"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def turns(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    """As a file has them: without our own key."""
    return [{key: value for key, value in message.items() if key != "train"} for message in messages]


ROWS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "alpaca": ({"instruction": "q", "chosen": "good", "rejected": "poor"}, [USER]),
    "alpaca with all columns": (
        {"instruction": "q", "input": "i", "system": "s", "history": [["before", "then"]],
         "chosen": "good", "rejected": "poor"},
        [SYSTEM, *EARLIER, {"role": "user", "content": "q\ni"}],
    ),
    "a question": ({"system": "s", "question": "q", "chosen": "good", "rejected": "poor"}, [SYSTEM, USER]),
    "a question beside answers as turns": ({"question": "q", "chosen": [GOOD], "rejected": [POOR]}, [USER]),
    "a question beside whole conversations": (
        {"question": "q, in other words", "chosen": [USER, GOOD], "rejected": [USER, POOR]}, [USER],
    ),
    "a question beside whole conversations as JSON": (
        {"question": "q", "chosen": json.dumps([USER, GOOD]), "rejected": json.dumps([USER, POOR])}, [USER],
    ),
    "a question beside transcripts": (
        {"question": "q", "chosen": "\n\nHuman: q\n\nAssistant: good",
         "rejected": "\n\nHuman: q\n\nAssistant: poor"},
        [USER],
    ),
    "openai": (
        {"input": {"messages": [SYSTEM, USER], "tools": []}, "preferred_output": [GOOD],
         "non_preferred_output": [POOR]},
        [SYSTEM, USER],
    ),
    "alpaca, answers as turns": (
        {"instruction": "q", "system": "s", "chosen": [{"role": "assistant", "content": "good"}],
         "rejected": [{"role": "assistant", "content": "poor"}]},
        [SYSTEM, USER],
    ),
    "alpaca, answers as whole conversations": (
        {"instruction": "q", "chosen": [USER, {"role": "assistant", "content": "good"}],
         "rejected": [USER, {"role": "assistant", "content": "poor"}]},
        [USER],
    ),
    "sharegpt": (
        {"conversations": SPOKEN, "chosen": {"from": "gpt", "value": "good"},
         "rejected": {"from": "gpt", "value": "poor"}, "system": "s"},
        [SYSTEM, *EARLIER, USER],
    ),
    "sharegpt, answers as text": (
        {"conversations": SPOKEN, "chosen": "good", "rejected": "poor"}, [*EARLIER, USER],
    ),
    "messages before two turns": (
        {"messages": turns(SYSTEM, *EARLIER, USER), "chosen": GOOD, "rejected": POOR}, [SYSTEM, *EARLIER, USER],
    ),
    "texts": ({"prompt": "q", "chosen": "good", "rejected": "poor", "system": "s"}, [SYSTEM, USER]),
    "texts that look like JSON": (
        {"prompt": "[1]", "chosen": "good", "rejected": "poor"}, [{"role": "user", "content": "[1]"}],
    ),
    "messages": ({"prompt": turns(*EARLIER, USER), "chosen": [GOOD], "rejected": [POOR]}, [*EARLIER, USER]),
    "a text and two messages": ({"prompt": "q", "chosen": [GOOD], "rejected": [POOR]}, [USER]),
    "implicit prompt": (
        {"chosen": turns(*EARLIER, USER, GOOD), "rejected": turns(*EARLIER, USER, POOR)}, [*EARLIER, USER],
    ),
    "implicit prompt, as JSON in a table": (
        {"chosen": '[{"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}]',
         "rejected": '[{"role": "user", "content": "q"}, {"role": "assistant", "content": "poor"}]'},
        [USER],
    ),
    "implicit prompt, spoken": (
        {"chosen": [*SPOKEN, {"from": "gpt", "value": "good"}],
         "rejected": [*SPOKEN, {"from": "gpt", "value": "poor"}]},
        [*EARLIER, USER],
    ),
    "answers as turns in other words": (
        {"prompt": "q", "chosen": [{"from": "GPT", "value": "good"}],
         "rejected": [{"role": "model", "content": "poor"}]},
        [USER],
    ),
    "whole conversations that repeat the prompt": (
        {"prompt": "q", "chosen": [USER, GOOD], "rejected": [USER, POOR], "messages": [USER, GOOD]}, [USER],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_every_form_is_the_same_pair(name: str) -> None:
    row, prompt = ROWS[name]
    assert matches(row)
    assert convert(row) == PreferencePair(Conversation([*prompt, GOOD]), Conversation([*prompt, POOR]))


@pytest.mark.parametrize("name", ["question", "input"])
def test_question_may_be_called_question_or_input(name: str) -> None:
    made = convert({name: "q", "system": "s", "chosen": "a", "rejected": "b"})
    assert isinstance(made, PreferencePair)
    assert [message["content"] for message in made.chosen.messages] == ["s", "q", "a"]
    turns = [{"role": "user", "content": "r"}, {"role": "assistant", "content": "a"}]
    made = convert({name: "q", "chosen": turns, "rejected": [turns[0], {"role": "assistant", "content": "b"}]})
    assert isinstance(made, PreferencePair) and [message["content"] for message in made.chosen.messages] == ["r", "a"]


def test_a_missing_answer_of_openai_is_named_by_its_side() -> None:
    row = {"input": {"messages": [USER]}, "preferred_output": [GOOD], "non_preferred_output": None}
    made = convert(row)
    assert isinstance(made, BadRow) and made.detail == "rejected is missing or empty"


def test_pair_keeps_tools_and_margin() -> None:
    made = convert({"prompt": "q", "chosen": "good", "rejected": "poor", "tools": [TOOL], "margin": 1.5})
    assert isinstance(made, PreferencePair)
    assert (made.chosen.tools, made.rejected.tools, made.margin) == ([TOOL], [TOOL], 1.5)


@pytest.mark.parametrize(("value", "margin"), [(None, 0), ("", 0), (2, 2), ("0.25", 0.25)])
def test_margin_is_a_number_and_0_when_absent(value: object, margin: float) -> None:
    made = convert({"prompt": "q", "chosen": "good", "rejected": "poor", "margin": value})
    assert isinstance(made, PreferencePair) and made.margin == margin


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"chosen": None}, "no answer"),
        ({"rejected": ""}, "no answer"),
        ({"rejected": []}, "no answer"),
        ({"prompt": ""}, "no question"),
        ({"prompt": None}, "no question"),
        ({"chosen": 3}, "not text"),
        ({"prompt": 3}, "not text"),
        ({"rejected": "good"}, "chosen and rejected are the same"),
        ({"rejected": [{"role": "user", "content": "other"}, POOR]}, "prompts that differ"),
        ({"prompt": None, "chosen": [USER, GOOD], "rejected": [SYSTEM, USER, POOR]}, "prompts that differ"),
        ({"chosen": [{**GOOD, "weight": 0}]}, "no label"),
        ({"chosen": [GOOD, USER]}, "ends without an assistant turn"),
        ({"prompt": [USER, GOOD]}, "the prompt ends with an answer"),
        (
            {"prompt": None, "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "good"}]},
            "the prompt ends with an answer",
        ),
        ({"margin": "much"}, "margin is not a number"),
        ({"margin": True}, "margin is not a number"),
        ({"margin": float("nan")}, "margin is not a number"),
    ],
)
def test_bad_preference_row_is_named_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    made = convert({"prompt": "q", "chosen": "good", "rejected": "poor", **changes})
    assert isinstance(made, BadRow) and made.reason == reason


@pytest.mark.parametrize("turn", ["text", None, 7, ["text"]])
def test_turns_that_are_not_turns_are_bad_rows(turn: object) -> None:
    question = [{"role": "user", "content": "q"}]
    whole = [*question, {"role": "assistant", "content": "a"}, turn]
    for row in (
        {"prompt": question, "chosen": whole, "rejected": whole},
        {"prompt": [turn], "chosen": whole, "rejected": whole},
        {"chosen": [turn], "rejected": [turn]},
    ):
        assert isinstance(convert(row), BadRow)


def test_a_transcript_of_human_and_assistant_is_a_conversation() -> None:
    begin = "\n\nHuman: Hello.\n\nAssistant: Hi.\n\nHuman: Who\n\nare you?"
    made = convert({"chosen": f"{begin}\n\nAssistant: A model.", "rejected": f"{begin}\n\nAssistant: No."})
    assert isinstance(made, PreferencePair)
    assert [each["content"] for each in made.chosen.messages] == ["Hello.", "Hi.", "Who\n\nare you?", "A model."]
    assert [each["role"] for each in made.chosen.messages] == ["user", "assistant", "user", "assistant"]
    assert made.chosen.messages[1]["train"] is False and made.rejected.messages[-1]["content"] == "No."


def test_text_that_is_not_a_transcript_has_no_question() -> None:
    assert isinstance(convert({"chosen": "Human: alone", "rejected": "Human: other"}), BadRow)


@pytest.mark.parametrize(
    "rejected", [{"rejected_response": "poor"}, {"rejected_messages": [USER, POOR]}, {"rejected_messages": [POOR]}]
)
def test_a_conversation_with_a_rejected_answer_is_a_pair(rejected: dict[str, Any]) -> None:
    row = {"messages": [USER, GOOD], **rejected}
    assert matches(list(row)) and not matches(["messages"])
    made = convert(row)
    if rejected.get("rejected_messages") == [POOR]:
        assert isinstance(made, BadRow)
        return
    assert isinstance(made, PreferencePair)
    assert (made.chosen.messages, made.rejected.messages) == ([USER, GOOD], [USER, POOR])


@pytest.mark.parametrize("rejected", ['{"a": 1}', "[1, 2]", '[{"a": 1}]'])
def test_rejected_response_that_looks_like_json_is_text(rejected: str) -> None:
    made = convert({"messages": [USER, GOOD], "rejected_response": rejected})
    assert isinstance(made, PreferencePair) and made.rejected.messages == [
        USER,
        {"role": "assistant", "content": rejected},
    ]


def test_a_prompt_that_is_a_transcript_is_its_turns() -> None:
    prompt = "\n\nHuman: 2+3?\n\nAssistant: 6\n\nHuman: Really?\n\nAssistant: "
    pair = convert({"prompt": prompt, "chosen": "No, 5.", "rejected": "Yes."})
    assert isinstance(pair, PreferencePair)
    assert [message["content"] for message in pair.chosen.messages] == ["2+3?", "6", "Really?", "No, 5."]
    # A text about transcripts is none.
    pair = convert({"prompt": "Human: what does \n\nAssistant: mean?", "chosen": "A role.", "rejected": "?"})
    assert isinstance(pair, PreferencePair) and len(pair.chosen.messages) == 2
