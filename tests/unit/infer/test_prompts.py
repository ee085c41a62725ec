"""Questions read from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import DataError
from ascendtune.infer.prompts import Prompt, read_prompts

USER = {"role": "user", "content": "why?"}
SYSTEM = {"role": "system", "content": "be short"}
ANSWER = {"role": "assistant", "content": "because"}
SCHEMA: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": {}}}


def rows_in(path: Path, *rows: dict[str, Any]) -> Path:
    file = path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "why?"}, Prompt([USER])),
        ({"prompt": "why?", "system": "be short"}, Prompt([SYSTEM, USER])),
        ({"prompt": [SYSTEM, USER]}, Prompt([SYSTEM, USER])),
        ({"messages": [USER]}, Prompt([USER])),
        ({"messages": [USER], "tools": [SCHEMA]}, Prompt([USER], [SCHEMA])),
        ({"messages": [USER], "functions": [SCHEMA["function"]]}, Prompt([USER], [SCHEMA])),
        ({"messages": [USER], "chat_template_kwargs": {"k": 1}}, Prompt([USER], options={"k": 1})),
        (
            {"instruction": "why?", "output": "because", "chat_template_kwargs": {"k": 1}},
            Prompt([USER], None, "because", {"k": 1}),
        ),
        ({"messages": [USER, ANSWER, USER, ANSWER]}, Prompt([USER, ANSWER, USER], None, "because")),
        ({"prompt": "why?", "completion": "because"}, Prompt([USER], None, "because")),
        ({"instruction": "why?", "input": "", "output": "because"}, Prompt([USER], None, "because")),
        ({"prompt": "why?", "completion": "because", "label": 0}, Prompt([USER], None, "because")),
        (
            {
                "conversations": [{"from": "human", "value": "why?"}, {"from": "gpt", "value": "because"}],
                "kto_tag": True,
            },
            Prompt([USER], None, "because"),
        ),
        ({"prompt": "why?", "chosen": "because", "rejected": "no"}, Prompt([USER], None, "because")),
        (
            {"prompt": [USER], "chosen": [USER, ANSWER], "rejected": [USER, ANSWER], "chat_template_kwargs": {"k": 1}},
            Prompt([USER], None, "because", {"k": 1}),
        ),
        ({"chosen": [USER, ANSWER], "rejected": [USER, {**ANSWER, "content": "no"}]}, Prompt([USER], None, "because")),
    ],
)
def test_every_form_of_a_row_becomes_a_prompt(tmp_path: Path, row: dict[str, Any], expected: Prompt) -> None:
    assert read_prompts(rows_in(tmp_path, row, row)) == [expected, expected]


def test_each_line_of_a_text_file_is_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "questions.txt").write_text("why?\n\nwhy?\n")
    assert read_prompts(tmp_path / "questions.txt") == [Prompt([USER]), Prompt([USER])]


def test_a_system_message_for_rows_that_have_none(tmp_path: Path) -> None:
    file = rows_in(tmp_path, {"messages": [USER]}, {"messages": [{"role": "system", "content": "own"}, USER]})
    assert [each.messages[0]["content"] for each in read_prompts(file, "be short")] == ["be short", "own"]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"prompt": 3}, "bad-rows"),
        ({"messages": []}, "bad-rows"),
        ({"messages": [SYSTEM]}, "bad-rows"),
        ({"messages": "text"}, "bad-rows"),
        ({"question": "why?"}, "data-format-mismatch"),
    ],
)
def test_a_row_that_asks_nothing_is_named(tmp_path: Path, row: dict[str, Any], code: str) -> None:
    with pytest.raises(DataError) as error:
        read_prompts(rows_in(tmp_path, {"prompt": "why?"}, row))
    assert error.value.code == code and "rows.jsonl:2" in str(error.value)


def test_a_prompt_that_is_not_a_text_is_shown(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the prompt is a number"):
        read_prompts(rows_in(tmp_path, {"prompt": 3}))
