from __future__ import annotations

from typing import Any

import pytest

from ascendtune.data.conversation import BadRow, Conversation
from ascendtune.data.format import alpaca
from ascendtune.data.format.alpaca import matches
from ascendtune.data.format.choose import returning_bad_rows

convert = returning_bad_rows(alpaca.convert)


def _said(row: dict[str, Any]) -> list[tuple[str, str]]:
    made = convert(row)
    assert isinstance(made, Conversation)
    return [(message["role"], message["content"]) for message in made.messages]


def test_input_stands_on_its_own_line_below_the_instruction() -> None:
    assert _said({"instruction": "Add.", "input": "1 2", "output": " 3\n"}) == [
        ("user", "Add.\n1 2"),
        ("assistant", " 3\n"),
    ]


@pytest.mark.parametrize("row", [{"instruction": "Add."}, {"instruction": "Add.", "input": ""}, {"input": "Add."}])
def test_missing_input_leaves_no_empty_line(row: dict[str, str]) -> None:
    assert _said({**row, "output": "3"})[0] == ("user", "Add.")


def test_system_and_history_come_first() -> None:
    row = {"instruction": "c", "output": "d", "system": "s", "history": [["a", "b"]]}
    expected = [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    assert _said(row) == expected
    assert _said({**row, "history": '[["a", "b"]]'}) == expected, "CSV holds lists as JSON text"


@pytest.mark.parametrize(
    ("row", "reason", "detail"),
    [
        ({"instruction": "q"}, "no answer", "output is missing or null"),
        ({"instruction": "q", "output": None}, "no answer", "output is missing or null"),
        ({"instruction": "q", "output": " \n"}, "no answer", "turn 2 (assistant) is empty"),
        ({"instruction": "", "input": None, "output": "a"}, "no question", "turn 1 (user) is empty"),
        ({"instruction": "q", "output": 42}, "not text", "output is a number"),
        ({"instruction": ["q"], "output": "a"}, "not text", "instruction is a list"),
        # What Python takes for false is not an absent text.
        ({"instruction": 0, "input": "q", "output": "a"}, "not text", "instruction is a number"),
        ({"instruction": "q", "input": False, "output": "a"}, "not text", "input is true or false"),
        ({"instruction": "q", "input": [], "output": "a"}, "not text", "input is a list"),
        ({"instruction": "q", "output": "\ud800"}, "not text", "output is half a surrogate pair"),
        ({"instruction": "q", "output": "a", "system": 1}, "not text", "system is a number"),
        ({"instruction": "q", "output": "a", "history": [["x"]]}, "unreadable history", None),
        ({"instruction": "q", "output": "a", "history": 0}, "unreadable history", None),
        ({"instruction": "q", "output": "a", "history": "x"}, "unreadable history", None),
    ],
)
def test_bad_alpaca_row_is_named_with_its_reason(row: dict[str, Any], reason: str, detail: str | None) -> None:
    made = convert(row)
    assert isinstance(made, BadRow)
    assert made.reason == reason
    assert detail in (None, made.detail)


def test_alpaca_needs_instruction_and_output_columns() -> None:
    assert matches(["instruction", "output"])
    assert not matches(["instruction", "input"])
