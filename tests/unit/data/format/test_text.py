from __future__ import annotations

import pytest

from ascendtune.data.conversation import BadRow, Conversation
from ascendtune.data.format.text import convert, matches


def test_the_row_is_what_the_model_says() -> None:
    assert convert({"text": "Once."}) == Conversation([{"role": "assistant", "content": "Once."}])


@pytest.mark.parametrize("value", ["", "  \n", None, 3])
def test_a_row_without_text_is_bad(value: object) -> None:
    assert isinstance(convert({"text": value}), BadRow)


def test_other_formats_go_first() -> None:
    assert matches(["text", "id"])
    assert not matches(["text", "prompt", "completion"]) and not matches(["texts"])
