"""Columns and turns of other names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascendtune.data.conversation import BadRow, Conversation, PreferencePair, RawRow, SourceFile, UnpairedPreference
from ascendtune.data.format.choose import choose_format
from ascendtune.data.spec import DatasetSpec, Task

TAGS = {"from": "speaker", "value": "text", "human": "Q", "gpt": "A", "system": "S"}
TURNS = [{"speaker": "Q", "text": "2+3?"}, {"speaker": "A", "text": "5"}]


def _made(row: dict[str, Any], task: Task = "conversations", **spec: Any) -> Any:
    _, convert = choose_format(DatasetSpec(path="x", **spec), [RawRow(row, SourceFile(Path("rows.json")), 1)], task)
    return convert(row)


def test_null_leaves_a_column_unread() -> None:
    row = {"instruction": "Add.", "input": "2 and 3", "output": "5", "system": "Be brief."}
    made = _made(row, columns={"input": None, "system": None})
    assert made == Conversation([{"role": "user", "content": "Add."}, {"role": "assistant", "content": "5"}])
    with pytest.raises(Exception) as caught:
        _made(row, format="alpaca", columns={"output": None})
    assert caught.value.code == "data-format-mismatch"


def test_mapped_tags_become_roles() -> None:
    made = _made(
        {"talk": [{"speaker": "S", "text": "Be brief."}, *TURNS]}, columns={"conversations": "talk"}, tags=TAGS
    )
    assert [message["role"] for message in made.messages] == ["system", "user", "assistant"]
    assert made.messages[2]["content"] == "5"


def test_speaker_without_a_tag_is_a_bad_row() -> None:
    made = _made({"conversations": [{"speaker": "gpt", "text": "x"}, *TURNS]}, tags=TAGS)
    assert isinstance(made, BadRow) and made.reason == "unknown role"


def test_answers_in_other_words() -> None:
    row = {"conversations": TURNS[:1], "chosen": TURNS[1], "rejected": {"speaker": "A", "text": "6"}}
    pair = _made(row, "pairs", tags=TAGS)
    assert isinstance(pair, PreferencePair) and pair.rejected.messages[-1]["content"] == "6"
    single = _made({"conversations": TURNS, "label": False}, "singles", tags=TAGS)
    assert isinstance(single, UnpairedPreference) and not single.desirable


@pytest.mark.parametrize("answer", ['{"a": 1}', "[1, 2]", '[{"a": 1}]'])
def test_answers_that_look_like_json_stay_texts_beside_tags(answer: str) -> None:
    pair = _made({"conversations": TURNS[:1], "chosen": answer, "rejected": "6"}, "pairs", tags=TAGS)
    assert isinstance(pair, PreferencePair) and pair.chosen.messages[-1]["content"] == answer
    pair = _made(
        {"conversations": json.dumps(TURNS[:1]), "chosen": json.dumps(TURNS[1]), "rejected": "6"}, "pairs", tags=TAGS
    )
    assert isinstance(pair, PreferencePair) and pair.chosen.messages[-1]["content"] == "5"


def test_a_path_names_a_value_inside_a_column() -> None:
    row = {"translation": {"de": "Haus", "en": "house"}, "answers": {"text": ["a", "b"]}, "id": 3}
    made = _made(row, columns={"prompt": "translation.de", "completion": "translation.en"})
    assert [message["content"] for message in made.messages] == ["Haus", "house"]
    made = _made(row, format="alpaca", columns={"instruction": "translation.de", "output": "answers.text.1"})
    assert made.messages[-1]["content"] == "b"
    assert _made(row, columns={"prompt": "translation.de", "completion": "answers.text.2"}).reason == "no answer"


def test_a_column_whose_name_has_a_point_is_not_a_path() -> None:
    row = {"a.b": "asked", "a": {"b": "inside"}, "completion": "said"}
    assert _made(row, columns={"prompt": "a.b"}).messages[0]["content"] == "asked"


def test_a_column_that_is_read_in_part_is_not_read_whole() -> None:
    row = {"messages": [{"role": "user", "content": "asked"}], "answer": "said"}
    made = _made(row, columns={"prompt": "messages.0.content", "completion": "answer"})
    assert [message["content"] for message in made.messages] == ["asked", "said"]


def test_a_path_into_a_column_that_is_not_there_is_refused() -> None:
    with pytest.raises(Exception) as caught:
        _made({"question": "x", "answers": ["y"]}, columns={"prompt": "question", "completion": "answer.0"})
    assert caught.value.code == "data-format-mismatch"
