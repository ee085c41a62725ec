from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ascendtune.data.format.guess import Guess, guess, names_columns


def _rows(**columns: Any) -> list[dict[str, Any]]:
    """Nine rows; `{}` in a text is the row's number."""
    return [
        {name: value.format(i) if isinstance(value, str) else value for name, value in columns.items()}
        for i in range(1, 10)
    ]


CERTAIN: dict[str, tuple[dict[str, Any], str, dict[str, str]]] = {
    "german": (
        {"ID": "{}", "Frage (Q)": "Was ist {}?", "Antwort": "Es ist {}, ja."},
        "prompt_completion",
        {"prompt": "Frage (Q)", "completion": "Antwort"},
    ),
    "chinese": (
        {"问题": "什么是 {}？", "答案": "是 {} 号"},
        "prompt_completion",
        {"prompt": "问题", "completion": "答案"},
    ),
    "camel case": (
        {"userPrompt": "Say {} now", "agentReply": "I say {}"},
        "prompt_completion",
        {"prompt": "userPrompt", "completion": "agentReply"},
    ),
    "flan": (
        {"inputs": "Translate {} now", "targets": "Done with {}, yes", "language": "English"},
        "prompt_completion",
        {"prompt": "inputs", "completion": "targets"},
    ),
    "good and bad": (
        {"question": "What is {}?", "good": "It is {}.", "bad": "No idea {}"},
        "preference",
        {"prompt": "question", "chosen": "good", "rejected": "bad"},
    ),
    "ms-swift's rejected response": (
        {"query": "What is {}?", "response": "It is {}.", "rejected_response": "No idea {}"},
        "preference",
        {"prompt": "query", "chosen": "response", "rejected": "rejected_response"},
    ),
    "feedback in words": (
        {"question": "What is {}?", "answer": "It is {}.", "feedback": "Bad"},
        "unpaired",
        {"prompt": "question", "completion": "answer", "label": "feedback"},
    ),
    "a label": (
        {"query": "What is {}?", "reply": "It is {}.", "liked": True},
        "unpaired",
        {"prompt": "query", "completion": "reply", "label": "liked"},
    ),
    "a context": (
        {"context": "A passage on {} and more", "question": "What is {}?", "answer": "It is {}."},
        "alpaca",
        {"instruction": "question", "input": "context", "output": "answer"},
    ),
    "answers that are numbers": (
        {"question": "{} + 2?", "answer": "{}"},
        "prompt_completion",
        {"prompt": "question", "completion": "answer"},
    ),
    "one text": ({"id": "{}", "body": "Some words about {} here"}, "text", {"text": "body"}),
}


@pytest.mark.parametrize("case", CERTAIN)
def test_columns_that_names_and_values_confirm_are_certain(case: str) -> None:
    columns, name, found = CERTAIN[case]
    made = guess(_rows(**columns))
    assert made is not None and made.certain
    assert (made.format, made.columns) == (name, found)


@pytest.mark.parametrize("identifier", ["{}", "T-10{}", "2024-03-0{}", "https://example.org/{}", "9f86d081884c7d{}"])
def test_identifiers_dates_and_links_are_neither_question_nor_answer(identifier: str) -> None:
    made = guess(_rows(prompt=identifier, foo="What is {}?", answer="It is {}, yes."))
    assert made is not None and made.columns == {"prompt": "foo", "completion": "answer"} and not made.certain


def test_letters_are_in_their_order_and_a_is_an_answer_only_beside_a_question() -> None:
    letters = guess(_rows(id="{}", a="foo is {}", b="bar was {}"))
    assert letters is not None and letters.columns == {"prompt": "a", "completion": "b"} and not letters.certain
    asked = guess(_rows(id="{}", a="foo is {}", q="bar was {}"))
    assert asked is not None and asked.columns == {"prompt": "q", "completion": "a"} and asked.certain


def test_columns_with_unknown_names_are_a_guess() -> None:
    made = guess(_rows(foo="Something on {}", bar="More words about {} than there"))
    assert made is not None and not made.certain and set(made.columns.values()) == {"foo", "bar"}


def test_without_a_column_of_text_there_is_no_guess() -> None:
    assert guess(_rows(a=1, b="{}")) is None
    assert guess([{}]) is None


@pytest.mark.parametrize(
    ("row", "is_header"),
    [
        ({"ID": "{}", "Frage": "Was ist {}?", "Antwort": "Es ist {}."}, True),
        ({"1": "{}", "What is one?": "What is {}?", "It is one.": "It is {}."}, False),
        ({"What is one?": "What is {}?", "1": "{}"}, False),
        ({"第一个国家是什么？": "第{}个国家是什么？", "它很美丽。": "它有{}个。"}, False),
        ({"Timestamp": "2024/03/0{}", "What is your question?": "Where is {}?"}, True),
        ({"What is your name?": "Ann {}", "What should the bot say?": "It says {} words"}, True),
        ({"alpha": "beta {}", "gamma": "delta {}"}, True),
        ({"Any comments?": "", "More": ""}, True),
    ],
)
def test_a_first_line_that_is_like_the_rows_names_no_columns(row: dict[str, str], is_header: bool) -> None:
    assert names_columns(_rows(**row)) is is_header


def test_a_column_of_truths_is_not_a_context() -> None:
    made = guess(_rows(Question="What is {}?", Answer="It is {}, yes.", IsContextOnly="False"))
    assert made is not None and made.columns == {"prompt": "Question", "completion": "Answer"}


def test_instruction_and_input_are_alpaca_whatever_the_answer_is_called() -> None:
    rows = _rows(instruction="Translate number {}", input="Is it {}?", response="It is {}, yes.")
    made = guess(rows)
    assert made is not None and made.certain
    assert made.columns == {"instruction": "instruction", "input": "input", "output": "response"}
    whole = guess([{"prompt": f"{row['instruction']}: {row['input']}.", **row} for row in rows])
    assert whole is not None and whole.columns == {"prompt": "prompt", "completion": "response"}


def test_longer_of_two_numbered_answers_is_proposed_and_not_certain() -> None:
    made = guess(_rows(instruction="Say {} words", output_1="One and {}", output_2="Two and {}, which is longer"))
    assert made is not None and not made.certain and made.columns["completion"] == "output_2"


def test_earlier_turns_in_a_column_history_are_kept() -> None:
    rows = [{**row, "history": [["Hi", "Hello"]]} for row in _rows(query="What is {}?", response="It is {}, yes.")]
    made = guess(rows)
    assert made is not None and made.certain and made.format == "alpaca"
    assert made.columns == {"instruction": "query", "output": "response"}


def test_a_column_of_turns_is_a_conversation() -> None:
    made = guess([{"system": "Be brief.", "conversation": [{"human": "q", "assistant": "a"}]}] * 3)
    assert made is not None and (made.format, made.columns) == ("sharegpt", {"conversations": "conversation"})
    plain = guess(_rows(chat="Tell me about {}", answer="It is {}, yes."))
    assert plain is not None and plain.format == "prompt_completion"


def test_contents_of_gemini_are_messages() -> None:
    contents = [{"role": "user", "parts": [{"text": "q"}]}, {"role": "model", "parts": [{"text": "a"}]}]
    made = guess([{"systemInstruction": {"role": "system", "parts": [{"text": "s"}]}, "contents": contents}] * 3)
    assert made is not None and made.certain and made.format == "messages"
    assert made.columns == {"messages": "contents", "system": "systemInstruction"}


def test_contents_that_are_not_turns_of_gemini_are_not_messages() -> None:
    rows = _rows(question="What is {}?", answer="It is {}, yes.")
    made = guess([{**row, "contents": [{"title": "a page", "text": "some words"}]} for row in rows])
    assert made is not None and made.columns == {"prompt": "question", "completion": "answer"}


def test_choices_of_a_question_are_not_its_answer() -> None:
    """MMLU: the column A is the first choice, and Answer has the letter of the right one."""
    choices = {letter: f"{{}} {letter}" for letter in "ABCD"}
    made = guess(_rows(Question="How much is {} plus one?", **choices, Answer="B"))
    assert made is not None and not made.certain
    assert made.columns == {"prompt": "Question", "completion": "Answer"}


def test_a_context_is_not_proposed_as_the_answer() -> None:
    made = guess(
        [{"context": f"The town has {i} schools.", "question": "How many?", "answers": {"text": [i]}} for i in range(9)]
    )
    assert made is None or "context" not in made.columns.values()


@pytest.mark.parametrize("asks", [True, False])
def test_system_prompt_is_not_the_question(asks: bool) -> None:
    """As in the post-training data of Nemotron, whose questions are lists of turns."""
    turns = [{"role": "user", "content": "What is the capital of France?"}]
    row = {"input": turns if asks else 7, "output": "It is Paris.", "system_prompt": "detailed thinking on"}
    found = guess([row] * 3)
    assert found is not None
    if not asks:
        assert not found.certain
        return
    words = {"prompt": "input", "completion": "output"}
    with_system = {**words, "system": "system_prompt"}
    assert found == Guess("conversations", "prompt_completion", with_system, certain=True)
    del row["system_prompt"]
    assert guess([row] * 3) == Guess("conversations", "prompt_completion", words, certain=True)


@pytest.mark.parametrize("written", [lambda value: value, json.dumps], ids=["objects", "text"])
def test_ranked_answers_make_pairs(written: Callable[[Any], Any]) -> None:
    answers = [{"answer": "Yes.", "model": "a", "rank": 2.0}, {"answer": "No.", "model": "b", "rank": 1.0}]
    likely = guess([{"prompt": f"What is {i}?", "answers": written(answers), "turns": 1} for i in range(9)])
    assert likely is not None and likely.certain
    assert (likely.format, likely.columns) == ("scored", {"prompt": "prompt", "completions": "answers"})


def test_readings_of_an_answer_are_the_first_of_them() -> None:
    answers = {"text": ["1850", "in 1850"], "answer_start": [28, 25]}
    likely = guess(_rows(title="University", context="The hall {} of 1850.", question="When was {}?", answers=answers))
    assert likely is not None and likely.certain and likely.format == "alpaca"
    assert likely.columns == {"instruction": "question", "input": "context", "output": "answers.text.0"}


def test_the_direction_of_a_translation_is_asked() -> None:
    likely = guess([{"translation": {"de": f"Haus {i}", "en": f"house {i}"}} for i in range(9)])
    assert likely is not None and not likely.certain
    assert likely.columns == {"prompt": "translation.de", "completion": "translation.en"}
    assert guess([{"meta": {"id": "x", "no": 1}} for _ in range(9)]) is None


def test_texts_that_are_said_in_turn_are_a_conversation() -> None:
    likely = guess([{"dialog": [f"Hello {i}.", "Hi."], "act": [1, 2]} for i in range(9)])
    assert likely is not None and likely.certain
    assert (likely.format, likely.columns) == ("sharegpt", {"conversations": "dialog"})
    assert guess([{"dialog": [f"Hello {i}."]} for i in range(9)]) is None


def test_question_and_answer_inside_an_object_are_named_by_their_paths() -> None:
    likely = guess([{"id": i, "data": {"q": f"What is {i}?", "a": f"It is {i}."}} for i in range(9)])
    assert likely is not None and likely.certain
    assert likely.columns == {"prompt": "data.q", "completion": "data.a"}
    unnamed = guess([{"data": {"x": {"y": f"What is {i}?"}, "z": f"It is {i}."}} for i in range(9)])
    assert unnamed is not None and not unnamed.certain
    assert unnamed.columns == {"prompt": "data.x.y", "completion": "data.z"}


@pytest.mark.parametrize(("name", "word"), [("context", "input"), ("system_prompt", "system")])
def test_a_passage_or_system_prompt_that_few_rows_have_is_kept(name: str, word: str) -> None:
    rows = [
        {"instruction": f"Tell me about {n}.", name: f"It is {n}." if n % 4 == 0 else None, "response": f"It {n}."}
        for n in range(20)
    ]
    found = guess(rows)
    assert found is not None and found.certain and found.columns[word] == name


def test_a_question_and_answer_are_not_those_that_others_were_made_of() -> None:
    rows = [
        {"orig_answer": f"{n}." * 30, "response": f"It is {n}.", "query": f"Find X for {n}.", "orig_question": f"{n}?"}
        for n in range(10)
    ]
    found = guess(rows)
    assert found is not None and found.columns == {"prompt": "query", "completion": "response"}


@pytest.mark.parametrize(
    "beside",
    [
        {"choices": {"text": ["x", "y"], "label": ["A", "B"]}},
        {"Options": "A x, B y"},
        {"context": {"contexts": ["A passage."], "labels": ["B"]}},
        {"context": ["A passage.", "Another."]},
    ],
    ids=["choices", "options", "passages in an object", "passages"],
)
def test_an_answer_that_needs_more_than_the_question_is_not_certain(beside: dict[str, Any]) -> None:
    found = guess([{"question": f"Which of these is {n}?", **beside, "answer": "A"} for n in range(10)])
    assert found is not None and not found.certain and {*beside}.isdisjoint(found.columns.values())
