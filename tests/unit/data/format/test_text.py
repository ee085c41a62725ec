from __future__ import annotations

import pytest

from ascendtune.data.conversation import BadRow, Conversation, Text
from ascendtune.data.format import text
from ascendtune.data.format.choose import returning_bad_rows
from ascendtune.data.format.text import matches

convert = returning_bad_rows(text.convert)
convert_to_text = returning_bad_rows(text.convert_to_text)


def test_text_row_becomes_one_assistant_turn() -> None:
    assert convert({"text": "Once."}) == Conversation([{"role": "assistant", "content": "Once."}])


def test_text_column_is_taken_unchanged() -> None:
    assert convert_to_text({"text": " Once.\n"}) == Text(" Once.\n")


@pytest.mark.parametrize("value", ["", "  \n", None, 3])
def test_a_row_without_text_is_bad(value: object) -> None:
    assert isinstance(convert({"text": value}), BadRow)
    assert isinstance(convert_to_text({"text": value}), BadRow)


def test_other_formats_go_first() -> None:
    assert matches(["text", "id"])
    assert not matches(["text", "prompt", "completion"]) and not matches(["texts"])
