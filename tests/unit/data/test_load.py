from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from ascendtune.core.errors import DataError
from ascendtune.data.load import LoadedRows, load_rows
from ascendtune.data.spec import DatasetSpec

Rows = list[dict[str, Any]]


def _write(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _numbered(count: int, start: int = 0) -> Rows:
    return [{"prompt": f"{number}?", "completion": str(number)} for number in range(start, start + count)]


def _load(*specs: DatasetSpec | Path, seed: int = 1, on_bad_row: Literal["fail", "skip"] = "fail") -> LoadedRows:
    full = [each if isinstance(each, DatasetSpec) else DatasetSpec(path=str(each)) for each in specs]
    return load_rows(full, "conversations", seed=seed, on_bad_row=on_bad_row, resolve=lambda spec: Path(spec.path))


def _answers(loaded: LoadedRows) -> list[int]:
    return [int(each.messages[-1]["content"]) for each in loaded.rows]


def test_rows_keep_their_order_and_their_places(tmp_path: Path) -> None:
    one, two = _write(tmp_path / "1.jsonl", _numbered(3)), _write(tmp_path / "2.jsonl", _numbered(2, start=3))
    loaded = _load(one, two)
    assert _answers(loaded) == [0, 1, 2, 3, 4]
    assert list(loaded.places) == [f"{one}:1", f"{one}:2", f"{one}:3", f"{two}:1", f"{two}:2"]
    assert [(each.rows_read, each.rows_kept, each.rows_used) for each in loaded.datasets] == [(3, 3, 3), (2, 2, 2)]


def test_weights_thin_and_repeat_rows(tmp_path: Path) -> None:
    half, twice, more = (_write(tmp_path / f"{start}.jsonl", _numbered(100, start)) for start in (0, 100, 200))
    specs = [DatasetSpec(path=str(path), weight=weight) for path, weight in ((half, 0.5), (twice, 2), (more, 1.5))]
    loaded = _load(*specs)
    answers = _answers(loaded)
    assert [each.rows_used for each in loaded.datasets] == [50, 200, 150]
    thinned = answers[:50]
    assert thinned == sorted(set(thinned)) and thinned != list(range(50))
    assert answers[50:250] == [*range(100, 200)] * 2
    assert answers[250:350] == [*range(200, 300)] and len(set(answers[350:])) == 50
    for index in (0, 60, 160, 260, 399):
        path, line = loaded.places[index].rsplit(":", 1)
        row = json.loads(Path(path).read_text().splitlines()[int(line) - 1])
        assert int(row["completion"]) == answers[index]

    assert _answers(_load(*specs)) == answers
    assert _answers(_load(*specs, seed=2)) != answers


def test_weights_count_the_rows_that_were_kept(tmp_path: Path) -> None:
    bad, good = _with_bad_rows(tmp_path), _write(tmp_path / "good.jsonl", _numbered(3, start=100))
    loaded = _load(DatasetSpec(path=str(bad), weight=2), good, on_bad_row="skip")
    kept = [number for number in range(1, 20) if number % 3 != 2]
    assert _answers(loaded) == [*kept, *kept, 100, 101, 102]
    assert loaded.places[26] == f"{good}:1"


def test_the_same_file_twice_is_thinned_differently(tmp_path: Path) -> None:
    spec = DatasetSpec(path=str(_write(tmp_path / "x.jsonl", _numbered(100))), weight=0.5)
    answers = _answers(_load(spec, spec))
    assert answers[:50] != answers[50:]


def test_a_tiny_weight_leaves_a_row(tmp_path: Path) -> None:
    spec = DatasetSpec(path=str(_write(tmp_path / "x.jsonl", _numbered(10))), weight=0.001)
    assert len(_load(spec).rows) == 1


def test_the_recipes_system_message_is_for_rows_without_one(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "completion": "a"}, {"prompt": "q", "completion": "a", "system": "own"}]
    spec = DatasetSpec(path=str(_write(tmp_path / "x.jsonl", rows)), system="ours")
    assert [each.messages[0] for each in _load(spec).rows] == [
        {"role": "system", "content": "ours"},
        {"role": "system", "content": "own"},
    ]
    assert all([each["role"] for each in row.messages[1:]] == ["user", "assistant"] for row in _load(spec).rows)


def _with_bad_rows(folder: Path, count: int = 20) -> Path:
    """Rows 3, 6, 9, … have no answer; row 1 has no question."""
    rows = _numbered(count)
    for index in range(2, count, 3):
        rows[index]["completion"] = ""
    rows[0]["prompt"] = None
    return _write(folder / "bad.jsonl", rows)


def test_fail_shows_the_first_five_bad_rows_and_counts_all(tmp_path: Path) -> None:
    path = _with_bad_rows(tmp_path)
    with pytest.raises(DataError) as raised:
        _load(path)
    first, *shown = raised.value.what.splitlines()
    assert first == "7 of 20 rows cannot be trained on"
    assert shown[0] == f"  {path}:1: no question (prompt is missing or null)"
    assert shown[1] == f"  {path}:3: no answer (turn 2 (assistant) is empty)"
    assert [line.split(":")[1] for line in shown[:5]] == ["1", "3", "6", "9", "12"]
    assert shown[5:] == ["  and 2 more"]
    assert "data.on_bad_row: skip" in raised.value.remedy


def test_skip_drops_and_counts_bad_rows(tmp_path: Path) -> None:
    path = _with_bad_rows(tmp_path)
    loaded = _load(path, on_bad_row="skip")
    assert _answers(loaded) == [number for number in range(1, 20) if number % 3 != 2]
    (report,) = loaded.datasets
    assert (report.rows_read, report.rows_kept, report.rows_used) == (20, 13, 13)
    assert {reason: rows.count for reason, rows in report.dropped.items()} == {"no question": 1, "no answer": 6}
    assert report.dropped["no answer"].examples == [
        f"{path}:{line}: turn 2 (assistant) is empty" for line in (3, 6, 9, 12, 15)
    ]
    assert loaded.places[1] == f"{path}:4"


def test_bad_rows_of_a_json_array_have_lines_too(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    rows: Rows = [*_numbered(2), {"prompt": "x", "completion": 5}]
    path.write_text(json.dumps(rows, indent=2))
    with pytest.raises(DataError, match=rf"bad\.json:{2 + 2 * 4}: not text \(completion is a number\)"):
        _load(path)


@pytest.mark.parametrize("on_bad_row", ["fail", "skip"])
def test_no_row_left_is_an_error_either_way(tmp_path: Path, on_bad_row: Literal["fail", "skip"]) -> None:
    path = _write(tmp_path / "bad.jsonl", [{"prompt": "x", "completion": ""}] * 3)
    with pytest.raises(DataError) as caught:
        _load(path, on_bad_row=on_bad_row)
    assert caught.value.code == "bad-rows"


def test_unreadable_syntax_stops_also_when_bad_rows_are_skipped(tmp_path: Path) -> None:
    path = _write(tmp_path / "bad.jsonl", _numbered(300))
    with path.open("a") as file:
        file.write("{\n")
    with pytest.raises(DataError) as raised:
        _load(path, on_bad_row="skip")
    assert raised.value.where == f"{path}:301"
    assert raised.value.code == "invalid-json" and "data.on_bad_row: skip" in raised.value.remedy


@pytest.mark.parametrize(
    ("name", "keys", "count", "name_of_format"),
    [
        ("alpaca_en_demo.json", {}, 999, "alpaca"),
        ("identity.json", {}, 91, "alpaca"),
        ("glaive_toolcall_en_demo.json", {}, 300, "sharegpt"),
        ("v1_sft_demo.jsonl", {}, 500, "messages"),
        ("gsm8k_train.jsonl", {"columns": {"prompt": "question", "completion": "answer"}}, 7473, "prompt_completion"),
    ],
)
def test_real_data_sets_load_with_their_row_counts(
    shared: Path, name: str, keys: dict[str, Any], count: int, name_of_format: str
) -> None:
    loaded = _load(DatasetSpec(path=str(shared / "data" / name), **keys))
    (report,) = loaded.datasets
    assert (report.rows_read, report.rows_used, report.format) == (count, count, name_of_format)
    assert not report.dropped
    assert len(loaded.rows) == len(loaded.places) == count


def test_real_tool_calls_are_objects(shared: Path) -> None:
    loaded = _load(shared / "data" / "glaive_toolcall_en_demo.json")
    calls = [
        call
        for conversation in loaded.rows
        for message in conversation.messages
        for call in message.get("tool_calls", [])
    ]
    assert len(calls) == 211
    assert all(isinstance(call["function"]["arguments"], dict) for call in calls)
