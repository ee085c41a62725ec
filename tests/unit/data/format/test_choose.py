from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from ascendtune.core.errors import DataError
from ascendtune.data.conversation import BadRow, Conversation, RawRow, SourceFile
from ascendtune.data.format.choose import FORMATS, choose_format
from ascendtune.data.spec import DatasetSpec, Task


def _choose(found: list[str], task: Task = "conversations", label: object = True, **keys: Any) -> tuple[str, Any]:
    row = RawRow(
        {column: label if column == "label" else "text" for column in found}, SourceFile(Path("rows.jsonl")), 1
    )
    return choose_format(DatasetSpec(path="rows.jsonl", **keys), [row], task)


def test_the_recipe_and_the_table_name_the_same_formats() -> None:
    assert set(get_args(DatasetSpec.model_fields["format"].annotation)) == {"auto", *FORMATS}


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        (["instruction", "input", "output"], "alpaca"),
        (["id", "conversations"], "sharegpt"),
        (["messages", "tools"], "messages"),
        (["prompt", "completion"], "prompt_completion"),
    ],
)
def test_auto_looks_at_the_columns(columns: list[str], name: str) -> None:
    assert _choose(columns)[0] == name


@pytest.mark.parametrize(
    ("task", "columns", "name"),
    [
        ("text", ["text", "url"], "text"),
        ("text", ["text", "prompt"], "text"),
        ("conversations", ["text"], "text"),
        ("pairs", ["conversations", "chosen", "rejected"], "preference"),
        ("pairs", ["chosen", "rejected"], "preference"),
        ("pairs", ["prompt", "completion", "label", "chosen", "rejected"], "preference"),
        ("singles", ["messages", "label"], "unpaired"),
        ("singles", ["instruction", "output", "kto_tag"], "unpaired"),
    ],
)
def test_the_task_decides_what_is_looked_for(task: Task, columns: list[str], name: str) -> None:
    assert _choose(columns, task)[0] == name


@pytest.mark.parametrize(
    ("question", "column", "value", "detail"),
    [
        ("<image>What is this?", "images", ["1.jpg"], "the column images contains images"),
        ("What is this?", "images", [{"path": "1.jpg"}], "the column images contains images"),
        ("What is this?", "image", {"bytes": "…"}, "the column image contains images"),
        ("What is this?\n<image>", "image", "coco/1.jpg", "the column image contains images"),
        ("<audio>What is this?", "audios", "['1.wav']", "the column audios contains audios"),
        ("What is this?", "image", "https://example.org/1.jpg", None),
        ("What is this?", "images", [], None),
        ("What is <image> in HTML?", "images", None, None),
    ],
)
def test_rows_about_pictures_are_bad_rows(question: str, column: str, value: object, detail: str | None) -> None:
    values = {"prompt": question, "completion": "a cat", column: value}
    rows = [RawRow(values, SourceFile(Path("rows.jsonl")), 1)]
    made = choose_format(DatasetSpec(path="rows.jsonl"), rows)[1](values)
    if detail is None:
        assert isinstance(made, Conversation)
    else:
        assert isinstance(made, BadRow) and made.reason == "not only text" and made.detail.startswith(detail)


def test_text_gives_way_to_any_format_that_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    new: Any = ModuleType("a_new_format")
    new.TASKS, new.WORDS, new.convert = ("conversations",), ("asked", "said"), Conversation
    new.matches = {"asked", "said"}.issubset
    monkeypatch.setitem(sys.modules, "a_new_format", new)
    monkeypatch.setitem(FORMATS, "new", "a_new_format")
    assert _choose(["asked", "said", "text"])[0] == "new"
    assert _choose(["asked", "text"])[0] == "text"
    assert _choose(["asked", "said", "text"], task="text")[0] == "text"
    assert _choose(["asked", "said", "text"], format="text")[0] == "text"


def test_conversations_may_have_labels_of_their_own() -> None:
    assert _choose(["messages", "label"], label="greeting")[0] == "messages"


@pytest.mark.parametrize("label", [False, "False"])
def test_bad_answers_are_not_conversations(label: object) -> None:
    """CSV holds only text: its bad answers would be trained on like the good ones."""
    with pytest.raises(DataError, match="this file has answers with a label"):
        _choose(["prompt", "completion", "label"], label=label)


def test_a_format_that_is_named_is_taken() -> None:
    assert _choose(["messages", "chosen", "rejected"], format="messages")[0] == "messages"
    assert _choose(["text", "prompt"], format="text")[0] == "text"


@pytest.mark.parametrize(
    ("task", "found", "keys", "what", "remedy"),
    [
        (
            "pairs", ["messages", "tools"], {},
            "method.stage: preference (or reward) needs pairs of answers; this file has conversations "
            "(columns messages, tools)",
            "use method.stage: sft, or say which column is which, e.g. {format: preference, columns: {prompt: …",
        ),
        ("pairs", ["text"], {}, "needs pairs of answers; this file has text", "use method.stage: pretrain"),
        (
            "pairs", ["messages", "label"], {},
            "needs pairs of answers; this file has answers with a label (columns messages, label)",
            "use method.preference.loss: kto",
        ),
        (
            "conversations", ["conversations", "chosen", "rejected"], {},
            "method.stage: sft needs conversations; this file has pairs of answers",
            "use method.stage: preference",
        ),
        (
            "conversations", ["prompt", "completion", "label"], {},
            "method.stage: sft needs conversations; this file has answers with a label",
            "or say which column is which, e.g. {format: prompt_completion",
        ),
        (
            "singles", ["prompt", "chosen", "rejected"], {},
            "method.preference.loss: kto needs answers with a label; this file has pairs of answers",
            "use method.stage: preference",
        ),
        ("text", ["messages"], {}, "method.stage: pretrain needs text; this file has conv", "use method.stage: sft"),
        ("text", ["content"], {}, "no format fits the columns content", "{format: text, columns: {text: content}}"),
        (
            "text", ["text"], {"format": "alpaca"},
            "method.stage: pretrain needs text; the format alpaca is for conversations",
            "use method.stage: sft, or format: text",
        ),
        (
            "singles", ["prompt", "completion"], {"format": "unpaired"},
            "the format unpaired needs the columns prompt, completion and label; this file has: prompt, completion",
            "{format: unpaired",
        ),
    ],
)  # fmt: skip
def test_data_for_another_task_are_refused(
    task: Task, found: list[str], keys: dict[str, Any], what: str, remedy: str
) -> None:
    with pytest.raises(DataError) as raised:
        _choose(found, task, **keys)
    assert what in raised.value.what
    assert remedy in raised.value.remedy


def test_an_optional_column_may_be_missing_from_the_first_row() -> None:
    source = SourceFile(Path("rows.jsonl"))
    rows = [RawRow({"p": "1", "c": "2"}, source, 1), RawRow({"p": "1", "c": "2", "s": "3"}, source, 2)]
    spec = DatasetSpec(path="rows.jsonl", columns={"prompt": "p", "completion": "c", "system": "s"})
    _, convert = choose_format(spec, rows)
    assert [len(convert(row.values).messages) for row in rows] == [2, 3]  # type: ignore[union-attr]


def test_a_mapped_column_is_read_under_our_word() -> None:
    name, convert = _choose(["question", "answer"], columns={"prompt": "question", "completion": "answer"})
    made = convert({"question": "1+1?", "answer": "2"})
    assert name == "prompt_completion"
    assert isinstance(made, Conversation) and [each["content"] for each in made.messages] == ["1+1?", "2"]


def test_words_may_be_swapped() -> None:
    _, convert = _choose(["prompt", "completion"], columns={"prompt": "completion", "completion": "prompt"})
    made = convert({"prompt": "a", "completion": "q"})
    assert [each["content"] for each in made.messages] == ["q", "a"]


@pytest.mark.parametrize(
    ("found", "keys", "what", "remedy"),
    [
        (
            ["Frage", "Antwort"],
            {},
            "no format fits the columns Frage, Antwort",
            "columns: {prompt: Frage, completion: Antwort}",
        ),
        (["note"], {}, "no format fits the columns note", "{prompt: note, completion: …}"),
        ([], {}, "no format fits the columns (none)", "say which column is which"),
        (
            ["messages", "conversations"],
            {},
            "fit several formats: sharegpt and messages",
            "say which: format: sharegpt",
        ),
        (
            ["Frage", "Antwort"],
            {"format": "alpaca"},
            "the format alpaca needs the columns instruction and output; this file has: Frage, Antwort",
            "{format: alpaca, columns: {instruction: Frage, output: Antwort}}",
        ),
        (["Frage"], {"format": "messages"}, "the format messages needs the column messages", "messages: Frage"),
        (
            ["Frage", "Antwort"],
            {"columns": {"prompt": "Frge", "completion": "Antwort"}},
            "columns: there is no column 'Frge'",
            "did you mean 'Frage'? the columns are: Frage, Antwort",
        ),
        (
            ["Frage", "Antwort"],
            {"format": "prompt_completion", "columns": {"promt": "Frage"}},
            "columns: 'promt' is not a column name of the format prompt_completion",
            "did you mean 'prompt'? the names are: prompt, completion, reasoning_content, system, tools",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused_with_a_remedy(
    found: list[str], keys: dict[str, Any], what: str, remedy: str
) -> None:
    with pytest.raises(DataError) as raised:
        _choose(found, **keys)
    assert what in raised.value.what
    assert remedy in raised.value.remedy
    assert raised.value.where == "rows.jsonl:1"


def test_the_remedy_names_the_likely_columns_and_never_an_identifier() -> None:
    source = SourceFile(Path("x"))
    rows = [
        RawRow(
            {"ID": str(number), "Frage (Q)": f"Was ist {number}?", "Antwort": "Eine Zahl."},
            SourceFile(Path("x")),
            number,
        )
        for number in range(9)
    ]
    with pytest.raises(DataError) as raised:
        choose_format(DatasetSpec(path="x"), rows)
    assert "columns: {prompt: Frage (Q), completion: Antwort}" in raised.value.remedy
    pairs = [RawRow({"Frage": "Who?", "good": "You there.", "bad": "Me here."}, source, number) for number in range(9)]
    with pytest.raises(DataError) as raised:
        choose_format(DatasetSpec(path="x"), pairs)
    assert raised.value.remedy.startswith("use method.stage: preference")
    assert "columns: {prompt: Frage, chosen: good, rejected: bad}" in raised.value.remedy
