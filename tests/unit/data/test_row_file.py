"""Rows in a file: what is read is what was appended, in any order, without memory for each row."""

from __future__ import annotations

import datetime
import json
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascendtune.data import row_file
from ascendtune.data.conversation import Conversation, PreferencePair, SourceFile, Text, UnpairedPreference
from ascendtune.data.load import load_rows
from ascendtune.data.row_file import RowFile, RowPlaces, Rows
from ascendtune.data.spec import DatasetSpec

SOURCE = SourceFile(Path("rows.jsonl"))


def chat(*contents: str, **keys: Any) -> Conversation:
    return Conversation([{"role": "user", "content": each} for each in contents], **keys)


def stored(*rows: Any) -> RowFile:
    file = RowFile()
    for number, row in enumerate(rows, 1):
        file.append(row, SOURCE, number)
    file.complete()
    return file


@pytest.mark.parametrize(
    "rows",
    [
        [chat("a", "b\n"), chat("灯 \ud800 \x00", tools=[{"name": "f", "arguments": {"x": [1.5, None, True]}}])],
        [Text(""), Text("null"), Text('","')],
        [
            PreferencePair(chat("q", "yes"), chat("q", "no", options={"x": 1}), 0.1),
            PreferencePair(chat("q"), chat("r", tools=[])),
        ],
        [UnpairedPreference(chat("q"), True), UnpairedPreference(chat("r", options={"thinking": False}), False)],
    ],
    ids=["conversations", "texts", "pairs", "singles"],
)
def test_rows_are_read_as_they_were_appended(rows: list[Any]) -> None:
    with closing(stored(*rows)) as file:
        assert list(Rows(file)) == rows
        assert list(RowPlaces(Rows(file))) == [f"rows.jsonl:{number}" for number in range(1, len(rows) + 1)]


def test_values_that_json_does_not_have_stay() -> None:
    call: dict[str, Any] = {
        "type": "function",
        "function": {"name": "f", "arguments": {"day": datetime.date(2026, 1, 1)}},
    }
    odd = Conversation([{"role": "assistant", "content": "", "tool_calls": [call]}])
    with closing(stored(chat("before"), odd, chat("behind"))) as file:
        assert list(Rows(file)) == [chat("before"), odd, chat("behind")]


@pytest.mark.parametrize("largest", [4 << 20, 100], ids=["block by block", "row by row"])
def test_rows_of_many_blocks_are_read_in_any_order(largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_file, "_LARGEST_BLOCK", largest)
    texts = [Text(str(number) * (number % 7)) for number in range(1000)]
    order = np.random.default_rng(0).integers(0, 1000, 2000).astype(np.int32)
    with closing(stored(*texts)) as file:
        rows = Rows(file, order)
        assert list(rows) == [texts[number] for number in order]
        assert rows[998:1002] == [texts[number] for number in order[998:1002]]
        first = rows.without_copies()
        assert sorted(order[first].tolist()) == np.unique(order).tolist()
        assert list(rows.taken(first)) == [texts[number] for number in dict.fromkeys(order.tolist())]


@pytest.mark.long
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        path = tmp_path / f"{count}.jsonl"
        path.write_text((json.dumps({"prompt": "x" * 300, "completion": "y" * 300}) + "\n") * count)
        tracemalloc.start()
        try:
            spec = DatasetSpec(path=str(path))
            with closing(
                load_rows([spec], "conversations", seed=0, on_bad_row="fail", resolve=lambda _: path)
            ) as loaded:
                assert sum(len(each.messages) for each in loaded.rows) == 2 * count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    assert peak(4000) - peak(1000) < 100_000
