from __future__ import annotations

import gzip
import json
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascendtune.core.errors import DataError
from ascendtune.data import files
from ascendtune.data.json_rows import rows_of_json
from ascendtune.data.read import rows_of_file
from rows_of_files import TEXTS, refused, rows_in

_rows = st.lists(st.dictionaries(st.sampled_from(["a", "b", "[", "}"]), TEXTS), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(_rows, st.sampled_from([None, 0, 2]), st.booleans(), st.integers(0, 3))
def test_the_place_of_an_array_row_is_the_line_of_its_brace(
    rows: list[dict[str, str]], indent: int | None, ascii_only: bool, empty_lines: int
) -> None:
    each = [json.dumps(row, indent=indent, ensure_ascii=ascii_only) for row in rows]
    text = "\n" * empty_lines + "[\n" + (" ,\n\n ").join(each) + "\n]"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        path.write_text(text, encoding="utf-8")
        rows_read = rows_in(path)
        assert [row.values for row in rows_read] == rows
        lines, begin = [], empty_lines + 2
        for row in each:
            lines.append(f"{path}:{begin}")
            begin += row.count("\n") + 2
        assert [row.place for row in rows_read] == lines


@pytest.mark.parametrize("first", ["[]", "[[]]", "[[1], 2]"])
def test_list_in_an_array_of_rows_is_refused_with_its_line(first: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(f'[\n{first},\n{{"a": 1}}]')
    error = refused(tmp_path / "x.json")
    assert "this one is a list" in error.what and error.where == f"{tmp_path}/x.json:2"
    (tmp_path / "x.json").write_text(f'[{{"a": 1}},\n\n{first}]')
    assert refused(tmp_path / "x.json").where == f"{tmp_path}/x.json:3"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(st.just("a"), TEXTS, min_size=1), min_size=1, max_size=8), st.data())
def test_a_malformed_line_is_named_wherever_it_stands(rows: list[dict[str, str]], data: st.DataObject) -> None:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    position = data.draw(st.integers(0, len(lines)))
    broken = data.draw(st.sampled_from(['{"a": ', '{"a": "x" "b"}', "{a: 1}", '{"a": "cut of', "plain", '{"a": 1}}']))
    lines.insert(position, broken)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        error = refused(path)
    assert error.where == f"{path}:{position + 1}"
    assert "not valid JSON" in error.what and "column" in error.what


def test_a_line_that_is_cut_off_is_named_by_the_column_behind_its_end(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"messages": [\n')
    assert refused(path).what.endswith("(line 2, column 15)")


def test_malformed_lines_are_named_together(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n' + '{"a"\n\n{"a": 2}\n' * 7)
    error = refused(path)
    assert error.where == f"{path}:2"
    what = error.what.splitlines()
    assert what[0] == "7 lines are not JSON" and what[2].startswith("  line 5: not valid JSON") and len(what) == 7
    assert what[-1] == "  and 2 more"


_ARRAY = json.dumps(
    [{"a": 'x"\\\n', "é": "三\U0001f40b", "n": [1.5e-3, -7, None, True]}, {}, {"deep": {"er": [[]]}}], indent=1
)


@pytest.mark.parametrize("piece", [3, 4, 7, 64])
@pytest.mark.parametrize("text", [_ARRAY, "[{}]", " \n[ ]\n"])
def test_an_array_is_the_same_in_any_pieces(
    piece: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PIECE", piece)
    path = tmp_path / "x.json"
    for written in (text, "\ufeff" + text, json.dumps(json.loads(text), ensure_ascii=False)):
        path.write_text(written)
        assert [row.values for row in rows_of_json(path)] == json.loads(text)


@pytest.mark.parametrize("piece", [3, 5, 64])
@pytest.mark.parametrize(
    "text",
    [
        *(_ARRAY[:end] for end in range(1, len(_ARRAY) - 1)),
        *("[{}\n {}]", '[{},\n\n  {"a" 1}]', '[{"a": "\t"}]', '[{"a": "\\x"}]', '[{"a": "\\u12"}]', '[{"a": tru}]'),
        *("[{}] x", "[{}]\n]", '[{"a": nul', '[{}, {"a": "' + "long " * 40, "[{}\x0b]"),
    ],
)
def test_a_broken_array_is_refused_where_json_refuses_it(
    piece: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PIECE", piece)
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(json.JSONDecodeError) as expected:
        json.loads(text)
    with pytest.raises(DataError) as raised:
        list(rows_of_json(tmp_path / "x.json"))
    assert raised.value.code == "invalid-json"
    assert raised.value.where == f"{tmp_path / 'x.json'}:{expected.value.lineno}"
    assert f"(line {expected.value.lineno}, column {expected.value.colno})" in raised.value.what
    assert raised.value.what.lower().startswith(f"not valid json: {expected.value.msg.lower()} (")


def test_an_array_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PIECE", 1 << 10)
    (tmp_path / "x.json").write_text(json.dumps([{"text": f"{number:064}"} for number in range(2000)], indent=1))
    rows = rows_of_json(tmp_path / "x.json")
    next(rows)
    tracemalloc.start()
    assert sum(1 for _ in rows) == 1999
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 20 << 10


def test_one_object_is_refused_with_the_way_to_its_list(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{\n"version": 1, "rows": [{"a": 1}]\n}')
    assert refused(path).remedy == "take the list out: jq .rows x.json > rows.json"


@pytest.mark.parametrize("number", ["1234567", "-1.5e-300", "0.25"])
def test_row_that_is_a_number_is_named_so_in_any_pieces(
    number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.json").write_text(f"[{number}, {{}}]")
    for piece in range(1, 12):
        monkeypatch.setattr(files, "_PIECE", piece)
        with pytest.raises(DataError) as raised:
            list(rows_of_json(tmp_path / "x.json"))
        assert raised.value.code == "row-not-an-object"


def test_an_array_that_unpacks_to_many_times_its_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ascendtune.data.files._MOST_UNPACKED", 1 << 20)
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(b'[{"a": 1}' + b" " * (2 << 20) + b"]"))
    assert refused(tmp_path / "x.json.gz").code == "gzip-too-large"


def test_a_key_that_stands_twice_makes_a_bad_row(tmp_path: Path) -> None:
    lines, array = tmp_path / "rows.jsonl", tmp_path / "rows.json"
    lines.write_text('{"text": "a"}\n{"text": "b", "text": "c"}\n{"text": "d", "more": {"x": 1, "x": 2}}\n')
    array.write_text('[{"text": "a"},\n {"text": "b", "text": "c"}, {"text": "d"}]\n')
    found = [row.fault for row in rows_of_file(lines)]
    assert [fault and fault.reason for fault in found] == [None, *["duplicate key"] * 2]
    assert [fault and fault.detail for fault in found] == [None, "'text'", "'x'"]
    assert [row.fault is not None for row in rows_of_file(array)] == [False, True, False]


def test_a_line_of_endless_length_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascendtune.data.files._LONGEST_LINE", 1 << 20)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a"}\n{"text": "' + "a" * (2 << 20) + '"}\n')
    with pytest.raises(DataError) as caught:
        list(rows_of_file(file))
    assert caught.value.code == "line-too-long"
    assert caught.value.where == f"{file}:2"


def test_rows_that_begin_on_one_line_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[{"a": 1}, {"a": 2},\n{"a": 3}]')
    assert [row.place for row in rows_in(path)] == [f"{path}:1, row 1", f"{path}:1, row 2", f"{path}:2"]


def test_place_of_a_bad_element_is_found_without_reading_what_follows(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('[{"a": 1},\n 7,\n {"a": 2},\n' + " oops")
    assert (refused(path).code, refused(path).where) == ("row-not-an-object", f"{path}:2")
