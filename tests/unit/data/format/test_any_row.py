"""Any content of a file becomes a row that can be tokenised, or a bad row; never an exception."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascendtune.data.conversation import BadRow, RawRow, SourceFile, conversations_of
from ascendtune.data.format.choose import FORMATS, choose_format, main_task_of, returning_bad_rows
from ascendtune.data.spec import DatasetSpec, Task
from ascendtune.data.tokenize import groups_of

_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": [1]}}}
_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
_TURNS = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "q"}]},
    {"role": "assistant", "content": "", "tool_calls": [_CALL], "weight": 0},
    {"role": "tool", "content": "1", "tool_call_id": "1", "name": "f"},
    {"role": "assistant", "content": "a", "reasoning_content": "r", "loss_weight": 1.0},
]
_SPOKEN = [
    {"from": "human", "value": "q"},
    {"from": "function_call", "value": '{"name": "f", "arguments": {}}'},
    {"from": "observation", "value": "1"},
    {"from": "gpt", "value": "a"},
]
_GOOD_ROWS: dict[str, dict[str, Any]] = {
    "alpaca": {"instruction": "q", "input": "i", "output": "a", "system": "s", "history": [["q", "a"]]},
    "sharegpt": {"conversations": _SPOKEN, "tools": json.dumps(_TOOLS), "system": "s"},
    "messages": {"messages": _TURNS, "tools": _TOOLS},
    "prompt_completion": {"prompt": _TURNS[:4], "completion": _TURNS[4:], "tools": _TOOLS},
    "text": {"text": "a"},
    "preference": {"prompt": _TURNS[:4], "chosen": _TURNS[4:], "rejected": "b", "tools": _TOOLS, "margin": 1.5},
    "scored": {
        "prompt": _TURNS[:4],
        "completions": [{"response": "a", "score": 2}, {"response": "b", "score": 1.5}],
        "tools": _TOOLS,
    },
    "unpaired": {"conversations": _SPOKEN, "tools": _TOOLS, "system": "s", "label": True},
}
TASKS: dict[str, Task] = {"preference": "pairs", "scored": "pairs", "unpaired": "singles"}
# JSON can escape half a surrogate pair; Parquet can hold bytes.
_leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", " ", "x", "[", "[]", "{}", "\ud800", b"x"])
)
# Leaves alone, too: otherwise nearly all values are lists and objects, and a row of two texts never stays good.
_values = _leaves | st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "type", "role"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def _slots(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything inside."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else [])
    for key, inner in items:
        yield value, key
        yield from _slots(inner)


def test_every_format_has_a_good_row_here() -> None:
    assert _GOOD_ROWS.keys() == FORMATS.keys()


@pytest.mark.parametrize(
    "extra", [{}, {"text": "all of it, as a template has put it together"}], ids=["alone", "beside_text"]
)
@pytest.mark.parametrize("name", FORMATS)
def test_columns_of_a_good_row_tell_its_format(name: str, extra: dict[str, Any]) -> None:
    row = RawRow(extra | _GOOD_ROWS[name], SourceFile(Path("rows.jsonl")), 1)
    assert choose_format(DatasetSpec(path="rows.jsonl"), [row], main_task_of(name))[0] == name


@pytest.mark.parametrize("name", FORMATS)
def test_the_template_gets_the_options_of_a_row_of_any_format(name: str) -> None:
    def made(options: Any) -> Any:
        row = RawRow(_GOOD_ROWS[name] | {"chat_template_kwargs": options}, SourceFile(Path("rows.jsonl")), 1)
        return choose_format(DatasetSpec(path="rows.jsonl"), [row], main_task_of(name))[1](row.values)

    for options in ({"enable_thinking": False}, '{"enable_thinking": false}'):
        assert all(each.options == {"enable_thinking": False} for each in conversations_of(made(options)))
    for empty in (None, "", {}, "{}"):
        assert all(each.options is None for each in conversations_of(made(empty)))
    if name != "text":
        assert made(["enable_thinking"]).reason == "unreadable chat_template_kwargs"


@pytest.mark.long
@pytest.mark.parametrize("name", FORMATS)
def test_good_row_with_any_value_anywhere_never_raises(name: str) -> None:
    convert = returning_bad_rows(resolve_name(f"{FORMATS[name]}:convert"))
    outcomes: Counter[type] = Counter()

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        row = copy.deepcopy(_GOOD_ROWS[name])
        container, key = data.draw(st.sampled_from(list(_slots(row))))
        container[key] = data.draw(_values)
        made = convert(row)
        outcomes[type(made)] += 1
        if isinstance(made, BadRow):
            assert made.reason
            return
        for conversation in groups_of([made, made], TASKS.get(name, "conversations")).conversations:
            assert conversation.messages[-1]["role"] == "assistant"
            json.dumps([conversation.messages, conversation.tools], ensure_ascii=False).encode()

    check()
    assert len(outcomes) == 2, "the values reach both outcomes"
