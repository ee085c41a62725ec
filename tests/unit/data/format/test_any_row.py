"""Whatever a file holds, a row becomes a conversation that can be tokenised, or a bad row; never an exception."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascendtune.core.table import load
from ascendtune.data.conversation import BadRow, Conversation
from ascendtune.data.format.choose import FORMATS

# JSON can escape half a surrogate pair; Parquet can hold bytes.
_scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["\ud800", b"x"])
)
_known_words = st.sampled_from(
    [
        "role",
        "content",
        "from",
        "value",
        "type",
        "text",
        "name",
        "arguments",
        "function",
        "tool_calls",
        "weight",
        "loss_weight",
        "train",
        "tool_call_id",
    ]
)
_known_values = st.sampled_from(
    [
        "user",
        "assistant",
        "system",
        "tool",
        "human",
        "gpt",
        "function_call",
        "observation",
        "text",
        '{"name": "f"}',
        "[1]",
    ]
)
_values = st.recursive(
    _scalars | _known_values,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_known_words, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("name", FORMATS)
def test_any_row(name: str) -> None:
    convert = load({name: f"{FORMATS[name]}:convert"}, name)
    words = load({name: f"{FORMATS[name]}:WORDS"}, name)

    @settings(max_examples=150, deadline=None)
    @given(st.dictionaries(st.sampled_from(words), _values))
    def check(row: dict[str, Any]) -> None:
        made = convert(row)
        if isinstance(made, BadRow):
            assert made.reason
            return
        assert isinstance(made, Conversation)
        assert made.messages[-1]["role"] == "assistant"
        json.dumps([made.messages, made.tools], ensure_ascii=False).encode()

    check()
