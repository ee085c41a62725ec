from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascendtune.core.errors import DataError
from ascendtune.data import files
from ascendtune.data.conversation import RawRow, SourceFile
from ascendtune.data.files import data_files
from ascendtune.data.json_rows import rows_of_json
from ascendtune.data.read import first_rows, read_rows, rows_of_file
from ascendtune.data.spec import DatasetSpec
from time_limit import time_limit

_ROWS = [{"a": "one", "b": ""}, {"a": 'zwei, "zwei"', "b": "x\ny"}, {"a": "三\u2028", "b": "\\ud"}]

_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00"), max_size=12)
_rows = st.lists(st.dictionaries(st.sampled_from(["a", "b", "[", "}"]), _texts), min_size=1, max_size=8)


def _read(path: Path, **keys: Any) -> list[RawRow]:
    return list(read_rows(DatasetSpec(path=str(path), **keys)))


def _refused(path: Path, **keys: Any) -> DataError:
    with pytest.raises(DataError) as raised:
        _read(path, **keys)
    assert raised.value.exit_code == 2
    return raised.value


def _csv(rows: list[dict[str, str]], **how: Any) -> str:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]), **how)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


_CONTENTS: dict[str, bytes] = {
    "rows.json": json.dumps(_ROWS, ensure_ascii=False, indent=1).encode(),
    "rows.jsonl": b"".join(json.dumps(row).encode() + b"\n" for row in _ROWS),
    "rows.ndjson": b"\n".join(json.dumps(row, ensure_ascii=False).encode() + b"\r\n" for row in _ROWS),
    "rows.csv": _csv(_ROWS).encode(),
    "rows.tsv": _csv(_ROWS, delimiter="\t").encode(),
    "rows.parquet": _parquet(_ROWS),
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", _CONTENTS)
def test_every_format_gives_the_same_rows(name: str, compressed: bool, tmp_path: Path) -> None:
    path = tmp_path / (name + ".gz" * compressed)
    path.write_bytes(gzip.compress(_CONTENTS[name]) if compressed else _CONTENTS[name])
    assert [row.values for row in _read(path)] == _ROWS
    assert [row.values for row in _read(path, limit=2)] == _ROWS[:2]


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows.parquet"])
def test_content_tells_the_format_where_the_name_does_not(name: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.data"
    path.write_bytes(_CONTENTS[name])
    assert [row.values for row in _read(path)] == _ROWS


def test_the_suffix_json_also_holds_lines_and_jsonl_an_array(tmp_path: Path) -> None:
    (tmp_path / "lines.json").write_bytes(_CONTENTS["rows.jsonl"])
    (tmp_path / "array.jsonl").write_bytes(_CONTENTS["rows.json"])
    assert [row.values for row in _read(tmp_path / "lines.json")] == _ROWS
    assert [row.values for row in _read(tmp_path / "array.jsonl")] == _ROWS


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows.csv"])
def test_a_utf8_mark_is_not_part_of_the_first_row(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" + _CONTENTS[name])
    assert [row.values for row in _read(path)] == _ROWS
    assert _read(path)[0].place == f"{path}:{1 if name == 'rows.jsonl' else 2}"


def test_text_has_one_row_a_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("first\n\n  second \nthird\n \t\n")
    assert [(row.values["text"], row.place) for row in _read(path)] == [
        ("first", f"{path}:1"),
        ("  second ", f"{path}:3"),
        ("third", f"{path}:4"),
    ]


@pytest.mark.parametrize("content", [b"a\r\rb\r c", b"a\r\n\nb\r c\n", b"a\n\rb\r\n c\r\n"])
def test_every_kind_of_line_end_ends_a_row_of_text(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_bytes(content)
    rows = [(row.values["text"], row.place) for row in _read(path)]
    assert rows == [("a", f"{path}:1"), ("b", f"{path}:3"), (" c", f"{path}:4")]


@pytest.mark.parametrize("name", ["rows.txt", "rows.md", "rows.csv", "rows.jsonl", "rows.json", "rows.parquet"])
def test_a_pointer_of_git_lfs_is_not_read_as_rows(name: str, tmp_path: Path) -> None:
    """Text would be trained on."""
    content = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123456\n"
    (tmp_path / name).write_text(content)
    assert _refused(tmp_path / name).code == "git-lfs-pointer"


def test_parquet_rows_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(_CONTENTS["rows.parquet"])
    assert [row.place for row in _read(path)] == [f"{path}, row {number}" for number in (1, 2, 3)]


def _saved_to_disk(directory: Path, rows: list[dict[str, Any]]) -> bytes:
    """What `Dataset.save_to_disk` writes, and the cache of a later `map`; returns the bytes of its data file."""
    import pyarrow.ipc

    directory.mkdir(parents=True)
    table = pyarrow.Table.from_pylist(rows)
    for name, part in (("data-00000-of-00001.arrow", table), ("cache-1f2e3d4c5b6a7988.arrow", table.slice(0, 1))):
        with pyarrow.ipc.new_stream(directory / name, table.schema) as stream:
            stream.write_table(part, max_chunksize=2)
    for name in ("dataset_info.json", "state.json"):
        (directory / name).write_text("{}")
    return (directory / "data-00000-of-00001.arrow").read_bytes()


def test_directories_of_save_to_disk_are_read(tmp_path: Path) -> None:
    rows = [{"n": number, "turn": {"said": str(number)} if number else {"other": "x"}} for number in range(5)]
    content = _saved_to_disk(tmp_path / "saved" / "train", rows)
    _saved_to_disk(tmp_path / "saved" / "test", rows[:1])
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    found = list(_read(tmp_path / "saved"))
    assert [row.values for row in found] == rows
    assert found[4].place == f"{tmp_path / 'saved' / 'train' / 'data-00000-of-00001.arrow'}, row 5"
    cut = tmp_path / "cut.arrow"
    cut.write_bytes(content[:-100])
    assert _refused(cut).code == "arrow-damaged"


def test_arrow_file_that_is_not_a_stream_is_read(tmp_path: Path) -> None:
    """As polars and Feather write it."""
    import pyarrow.ipc

    path = tmp_path / "rows.arrow"
    table = pyarrow.Table.from_pylist([{"n": number} for number in range(5)])
    with pyarrow.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=2)
    assert [row.values["n"] for row in _read(path)] == [0, 1, 2, 3, 4]
    packed = tmp_path / "rows.arrow.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [row.values["n"] for row in _read(packed)] == [0, 1, 2, 3, 4]
    path.write_bytes(path.read_bytes()[:-100])
    assert _refused(path).code == "arrow-damaged"


def test_a_key_that_other_parquet_rows_have_is_absent(tmp_path: Path) -> None:
    """A tool call of one row would be trained on with the arguments of the others."""
    rows = [
        {"turns": [{"calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}], "id": 1},
        {"turns": [{"calls": [{"name": "clock", "arguments": {"zone": "UTC"}}], "said": None}], "id": None},
    ]
    path = tmp_path / "rows.parquet"
    path.write_bytes(_parquet(rows))
    del rows[1]["turns"][0]["said"]  # type: ignore[index]
    assert [row.values for row in _read(path)] == rows


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
        read = _read(path)
        assert [row.values for row in read] == rows
        lines, begin = [], empty_lines + 2
        for row in each:
            lines.append(f"{path}:{begin}")
            begin += row.count("\n") + 2
        assert [row.place for row in read] == lines


@pytest.mark.parametrize("first", ["[]", "[[]]", "[[1], 2]"])
def test_list_in_an_array_of_rows_is_refused_with_its_line(first: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(f'[\n{first},\n{{"a": 1}}]')
    error = _refused(tmp_path / "x.json")
    assert "this one is a list" in error.what and error.where == f"{tmp_path}/x.json:2"
    (tmp_path / "x.json").write_text(f'[{{"a": 1}},\n\n{first}]')
    assert _refused(tmp_path / "x.json").where == f"{tmp_path}/x.json:3"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(st.just("a"), _texts, min_size=1), min_size=1, max_size=8), st.data())
def test_a_malformed_line_is_named_wherever_it_stands(rows: list[dict[str, str]], data: st.DataObject) -> None:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    position = data.draw(st.integers(0, len(lines)))
    broken = data.draw(st.sampled_from(['{"a": ', '{"a": "x" "b"}', "{a: 1}", '{"a": "cut of', "plain", '{"a": 1}}']))
    lines.insert(position, broken)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        error = _refused(path)
    assert error.where == f"{path}:{position + 1}"
    assert "not valid JSON" in error.what and "column" in error.what


def test_a_line_that_is_cut_off_is_named_by_the_column_behind_its_end(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"messages": [\n')
    assert _refused(path).what.endswith("(line 2, column 15)")


def test_malformed_lines_are_named_together(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n' + '{"a"\n\n{"a": 2}\n' * 7)
    error = _refused(path)
    assert error.where == f"{path}:2"
    what = error.what.splitlines()
    assert what[0] == "7 lines are not JSON" and what[2].startswith("  line 5: not valid JSON") and len(what) == 7
    assert what[-1] == "  and 2 more"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(_texts, _texts), min_size=1, max_size=8), st.data())
def test_csv_rows_know_their_first_line_and_ragged_ones_are_named(
    rows: list[tuple[str, str]], data: st.DataObject
) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(["a", "b"])
    begins = []
    for row in rows:
        begins.append(file.getvalue().count("\n") + 1)
        writer.writerow(row)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        path.write_text(file.getvalue(), encoding="utf-8", newline="")
        read = _read(path)
        assert [tuple(row.values.values()) for row in read] == rows
        assert [row.place for row in read] == [f"{path}:{line}" for line in begins]

        ragged = data.draw(st.sampled_from(["x\n", "x,y,z\n"]))
        path.write_text(file.getvalue() + ragged + '"p","q"\n', encoding="utf-8", newline="")
        error = _refused(path)
    assert error.where == f"{path}:{file.getvalue().count(chr(10)) + 1}"
    assert "the header has 2" in error.what


_BAD_FILES: dict[str, tuple[str, bytes, str, str]] = {
    # what: (name, content, place after the path, words of the message)
    "empty": ("x.jsonl", b"", "", "the file is empty"),
    "only white space": ("x.json", b" \n\n", "", "the file is empty"),
    "empty without suffix": ("x", b"", "", "the file is empty"),
    "empty list": ("x.json", b"[]", "", "the file has no rows"),
    "header only": ("x.csv", b"a,b\n", "", "the file has no rows"),
    "array cut off": ("x.json", b'[{"a": 1},\n{"a": 2},\n{"a"', ":3", "line 3"),
    "array broken": ("x.json", b'[{"a": 1},\n{"a": 2}\n{"a": 3}]', ":3", "expecting ',' delimiter"),
    "array of texts": ("x.json", b'[{"a": 1},\n\n"b"]', ":3", "this one is text"),
    "line of a list": ("x.jsonl", b'{"a": 1}\n[1]\n', ":2", "this one is a list"),
    "one object": ("x.json", b'{\n"data": [{"a": 1}]\n}', "", "one JSON object, not a list"),
    "deeply nested": ("x.json", b"[" * 100_000, ":1", "nested too deeply"),
    "endless number": ("x.jsonl", b'{"a": ' + b"1" * 5000 + b"}", ":1", "not readable JSON"),
    "latin-1 line": ("x.jsonl", b'{"a": 1}\n{"a": "caf\xe9"}\n', ":2", "byte 0xe9 at byte 11 of line 2"),
    "latin-1 array": ("x.json", b'[{"a": 1},\n{"a": "caf\xe9"}]\n', ":2", "byte 0xe9 at byte 11 of line 2"),
    "latin-1 csv": ("x.csv", b"a\ncaf\xe9\n", ":2", "byte 0xe9 at byte 4 of line 2"),
    "utf-16 cut off": ("x.jsonl", '{"a": 1}\n'.encode("utf-16")[:-1], "", "not valid UTF-16"),
    "open quote": ("x.csv", b'a,b\n1,2\n"3,4\n5,6\n', ":3", "not valid CSV"),
    "rows by name": (
        "x.json",
        json.dumps({f"row-{number}": {"a": "b"} for number in range(30)}).encode(),
        "",
        "one JSON object, not a list",
    ),
    "few rows by name": ("x.json", b'{\n"one": {"a": "b"},\n"two": {"a": "c"}}', "", "one JSON object, not a list"),
    "column twice": ("x.csv", b"a,a\n1,2\n", ":1", "duplicate name: 'a'"),
    "not parquet": ("x.parquet", b"PAR1 but no more", "", "Parquet file is damaged"),
    "parquet cut off": ("x.parquet", _CONTENTS["rows.parquet"][:-30], "", "Parquet file is damaged"),
    "not gzip": ("x.jsonl.gz", b'{"a": 1}\n', "", "gzip file is damaged"),
    "gzip cut off": ("x.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 9)[:-12], "", "gzip file is damaged"),
    "unknown format": ("x.xlsx", b"PK\x03\x04", "", "neither the name nor the content"),
}


@pytest.mark.parametrize("case", _BAD_FILES)
def test_an_unreadable_file_is_refused_with_its_place(case: str, tmp_path: Path) -> None:
    name, content, place, words = _BAD_FILES[case]
    path = tmp_path / name
    path.write_bytes(content)
    error = _refused(path)
    assert words in error.what
    assert error.where == f"{path}{place}"


_UTF16 = {
    "x.jsonl": '{"a": "ü"}\n{"a": "\u2028😀"}\n'.encode("utf-16"),
    "x.json": '[{"a": "ü"},\n{"a": "\u2028😀"}]'.encode("utf-16"),
    "x.tsv": "a\r\nü\r\n\u2028😀\r\n".encode("utf-16"),
    "big-endian.csv": b"\xfe\xff" + "a\nü\n\u2028😀\n".encode("utf-16-be"),
    "x.csv.gz": gzip.compress("a\nü\n\u2028😀\n".encode("utf-16")),
}


@pytest.mark.parametrize("name", _UTF16)
def test_text_in_utf16_is_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(_UTF16[name])
    assert [row.values for row in _read(tmp_path / name)] == [{"a": "ü"}, {"a": "\u2028😀"}]


def test_long_text_in_utf16_is_read_whole(tmp_path: Path) -> None:
    texts = [f"{number} ü😀" * (number % 50 + 1) for number in range(5000)]
    (tmp_path / "x.txt").write_bytes("\n".join(texts).encode("utf-16"))
    assert [row.values["text"] for row in _read(tmp_path / "x.txt")] == texts


@pytest.mark.parametrize(("text", "encoding"), [("Über Größe", "cp1252"), ("这是中文", "gb18030")])
def test_another_encoding_is_named(text: str, encoding: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(f"a\n{text}\n".encode(encoding))
    named = {"cp1252": "WINDOWS-1252", "gb18030": "GB18030"}[encoding]
    assert (
        f"iconv -f {named} -t UTF-8 {tmp_path}/x.csv > {tmp_path}/converted.csv" in _refused(tmp_path / "x.csv").remedy
    )


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
    assert _refused(path).remedy == "take the list out: jq .rows x.json > rows.json"


def test_commands_in_remedies_quote_names_that_others_chose(tmp_path: Path) -> None:
    path = tmp_path / "it's $(here).json"
    path.write_text(json.dumps({"'; reboot; '": [{"a": 1}]}, indent=1))
    assert shlex.split(_refused(path).remedy)[4:] == ["jq", ".\"'; reboot; '\"", path.name, ">", "rows.json"]
    path.write_bytes(b"[\xfc]")
    words = shlex.split(_refused(path).remedy)
    assert str(path) in words and f"{tmp_path}/converted.json" in words


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


def test_a_flipped_byte_in_compressed_data_is_noticed(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(b'{"a": "some text"}\n' * 50))
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "x.jsonl.gz").write_bytes(content)
    _refused(tmp_path / "x.jsonl.gz")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "blank"),
    [("x.jsonl.gz", b"\n"), ("x.jsonl.gz", b" \t\r\n"), ("x.csv.gz", b"\n"), ("x.txt.gz", b"\n"), ("x.txt.gz", b" \n")],
)
def test_a_small_file_of_many_blank_lines_is_refused_with_their_first(name: str, blank: bytes, tmp_path: Path) -> None:
    row = b"a\nb\n" if name == "x.csv.gz" else b'{"a": "b"}\n'
    (tmp_path / name).write_bytes(gzip.compress(row + blank * 20_000_000, 1))
    with time_limit(10, name):
        error = _refused(tmp_path / name)
    assert error.code == "too-many-blank-lines"
    assert str(error.where).endswith(":3" if name == "x.csv.gz" else ":2")


def test_blank_lines_between_rows_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes((b'{"a": 1}\n' + b"\n" * 60_000) * 3)
    assert [row.number for row in _read(tmp_path / "x.jsonl")] == [1, 60_002, 120_003]


def test_an_array_that_unpacks_to_many_times_its_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ascendtune.data.files._MOST_UNPACKED", 1 << 20)
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(b'[{"a": 1}' + b" " * (2 << 20) + b"]"))
    assert _refused(tmp_path / "x.json.gz").code == "gzip-too-large"


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "alpaca_en_demo.json").touch()
    for missing in ("data/alpaca_en_dmo.json", "data/alpaca_en_demo", "data/alpaca_en_demo.jsonl"):
        assert _refused(tmp_path / missing).remedy == f"did you mean '{tmp_path}/data/alpaca_en_demo.json'?"
    assert _refused(tmp_path / "dta/alpaca.json").remedy == f"did you mean '{tmp_path}/data'?"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.jsonl", "a.json", "README.txt", "dataset_info.json", ".hidden.json", "deep/c.jsonl", "picture.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"from": name}) + "\n")
    return tmp_path


def _names(rows: list[RawRow]) -> list[str]:
    return [row.values["from"] for row in rows]


def test_a_directory_is_its_data_files_in_order(folder: Path) -> None:
    rows = _read(folder)
    assert _names(rows) == ["a.json", "b.jsonl", "deep/c.jsonl"]
    assert rows[2].place == f"{folder}/deep/c.jsonl:1"


def test_split_and_subset_choose_files_by_name(folder: Path) -> None:
    for name in ("en/train-00000.jsonl", "en/test-00000.jsonl", "zh/train-00000.jsonl", "en/training.jsonl"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps({"from": name}) + "\n")
    assert _names(_read(folder, subset="en", split="train")) == ["en/train-00000.jsonl"]
    assert _names(_read(folder, split="test")) == ["en/test-00000.jsonl"]
    error = _refused(folder, split="dev")
    assert "no file belongs to the split 'dev'" in error.what and "a.json" in error.remedy


_CARD = """---
license: mit
configs:
- config_name: all
  data_files:
  - split: train
    path: all/train-*
- config_name: default
  data_files:
  - {split: train, path: data/train-*}
  - {split: test, path: [data/test-*, more/*]}
- config_name: socratic
  data_dir: deep
  data_files: "**/x*.jsonl"
- config_name: gone
  data_files: gone/*
- config_name: folder
  data_dir: other
---
# Rows
"""


@pytest.mark.parametrize(
    ("chosen", "read"),
    [
        ({}, ["data/train-0.jsonl"]),
        ({"subset": "all"}, ["all/train-0.jsonl"]),
        ({"split": "test"}, ["data/test-0.jsonl", "more/a.jsonl"]),
        ({"subset": "socratic"}, ["deep/er/x1.jsonl", "deep/x0.jsonl"]),
        ({"subset": "folder"}, ["other/train.jsonl"]),
        ({"subset": "folder", "split": "test"}, ["other/test.jsonl"]),
        # What the card does not name is found by the names of files.
        ({"subset": "other"}, ["other/train.jsonl"]),
        ({"subset": "gone", "split": "dev"}, ["gone/dev.jsonl"]),
    ],
    ids=str,
)
def test_the_card_of_a_data_set_says_which_files_a_subset_has(
    chosen: dict[str, str], read: list[str], tmp_path: Path
) -> None:
    """Several subsets may hold the same rows, which would be trained on twice."""
    (tmp_path / "README.md").write_text(_CARD)
    for name in ("all/train-0", "data/train-0", "data/test-0", "more/a", "deep/x0", "deep/er/x1", "deep/y",
                 "other/train", "other/test", "gone/dev"):  # fmt: skip
        file = tmp_path / f"{name}.jsonl"
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(json.dumps({"from": f"{name}.jsonl"}) + "\n")
    assert _names(_read(tmp_path, **chosen)) == read


@pytest.mark.parametrize(
    ("header", "read"),
    [
        ("configs:\n- {config_name: b, data_files: b.jsonl}\n- {config_name: a, data_files: a.jsonl}", ["b.jsonl"]),
        ("configs:\n- {config_name: b, data_files: b.jsonl}\n- {config_name: a, data_files: a.jsonl, default: true}",
         ["a.jsonl"]),
        ("configs:\n- data_files:\n  - {split: train_a, path: a.jsonl}\n  - {split: train_b, path: b.jsonl}",
         ["a.jsonl"]),
        ("configs:\n- data_files:\n  - {split: test, path: a.jsonl}\n  - {split: auxiliary_train, path: b.jsonl}",
         ["b.jsonl"]),
        ("configs:\n- data_files:\n  - {split: x, path: a.jsonl}\n  - {split: y, path: b.jsonl}",
         ["a.jsonl", "b.jsonl"]),
        ("configs:\n- data_files: {train: ./a.jsonl, test: b.jsonl}", ["a.jsonl"]),
        ("configs:\n- {data_dir: '', data_files: b.jsonl}", ["b.jsonl"]),
        ("configs:\n- {data_dir: ./., data_files: b.jsonl}", ["b.jsonl"]),
        # Not a card, or none that names files which are there.
        ("configs:\n- {config_name: b}", ["a.jsonl", "b.jsonl"]),
        ("configs:\n- data_files: ../a.jsonl", ["a.jsonl", "b.jsonl"]),
        ("configs: [1, {data_files: 3}, {data_files: [{path: 1}]}]", ["a.jsonl", "b.jsonl"]),
        ("configs: [", ["a.jsonl", "b.jsonl"]),
        ("- 1", ["a.jsonl", "b.jsonl"]),
    ],
)  # fmt: skip
def test_a_card_has_a_default_subset_or_none_at_all(header: str, read: list[str], tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"---\n{header}\n---\n")
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(json.dumps({"from": name}) + "\n")
    assert _names(_read(tmp_path)) == read


@pytest.mark.parametrize(
    ("chosen", "what"),
    [
        ({"subset": "math", "split": "dev"}, "no file belongs to the split 'dev' of the subset 'math'"),
        ({"subset": "mth", "split": "dev"}, "no file belongs to the subset 'mth'"),
        ({"split": "dev"}, "no file belongs to the split 'dev'"),
    ],
    ids=str,
)
def test_names_of_the_card_are_suggested_if_no_file_matches(chosen: dict[str, str], what: str, tmp_path: Path) -> None:
    splits = "{train: m-train.jsonl, test: m-test.jsonl}"
    header = f"configs:\n- {{config_name: math, data_files: {splits}}}\n- {{config_name: code, data_files: c.jsonl}}"
    (tmp_path / "README.md").write_text(f"---\n{header}\n---\n")
    for name in ("m-train", "m-test", "c"):
        (tmp_path / f"{name}.jsonl").write_text("{}\n")
    with pytest.raises(DataError) as caught:
        _read(tmp_path, **chosen)
    assert caught.value.what == what
    assert caught.value.remedy.endswith("README.md names the subsets (and splits) math (train, test), code (train)")


def test_a_subset_that_is_a_guess_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    header = "configs:\n- {config_name: main, data_files: main.jsonl}\n- {config_name: more, data_files: more.jsonl}\n"
    (tmp_path / "README.md").write_text(f"---\n{header}---\n")
    # As of a hub, from which the others are not downloaded.
    (tmp_path / "main.jsonl").write_text('{"from": "main.jsonl"}\n')
    for chosen in ({}, {}, {"subset": "main"}):
        assert _names(_read(tmp_path, **chosen)) == ["main.jsonl"]
    [told] = [record for record in caplog.records if record.levelname == "WARNING"]
    what = "README.md names what is read, subset 'main', split 'train' (1 file of 1); other subsets: more"
    assert told.message == f"{tmp_path}: {what}; it names no default: set `subset`"
    with_default = header.replace("more.jsonl}", "more.jsonl, default: true}")
    (tmp_path / "README.md").write_text(f"---\n{with_default}---\n")
    (tmp_path / "more.jsonl").write_text('{"from": "more.jsonl"}\n')
    assert _names(_read(tmp_path)) == ["more.jsonl"]
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_a_test_file_beside_a_train_file_is_not_trained_on(tmp_path: Path) -> None:
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / name).write_text(json.dumps({"from": name}) + "\n")
    assert _names(_read(tmp_path)) == ["train.jsonl"]


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (["Train.jsonl", "Test.jsonl"], ["Train.jsonl"]),
        (["training.jsonl", "testing.jsonl"], ["training.jsonl"]),
        (["evaluation/a.jsonl", "train.jsonl"], ["train.jsonl"]),
        (["more.jsonl", "test.jsonl", "train-2.jsonl"], ["more.jsonl", "train-2.jsonl"]),
        (["more.jsonl", "train.jsonl", "train_test.jsonl"], ["more.jsonl", "train.jsonl", "train_test.jsonl"]),
        (["more.jsonl", "test.jsonl"], ["more.jsonl", "test.jsonl"]),
    ],
)
def test_files_of_other_splits_are_left_out_where_one_is_of_train(
    names: list[str], read: list[str], tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"from": name}) + "\n")
    assert _names(_read(tmp_path)) == read


def test_a_compressed_file_that_cannot_be_read_is_not_left_out(folder: Path) -> None:
    (folder / "a.json.xz").touch()
    assert _names(_read(folder)) == ["a.json", "b.jsonl", "deep/c.jsonl"]
    (folder / "picture.zip").touch()
    (folder / ".d.jsonl.zst").touch()
    assert _names(_read(folder)) == ["a.json", "b.jsonl", "deep/c.jsonl"]
    packed = folder / "deep" / "d.jsonl.zst"
    packed.touch()
    for path in (folder, packed):
        error = _refused(path)
        assert (error.code, error.where) == ("data-format-unknown", str(packed))
    (folder / "train.jsonl").write_text('{"from": "train.jsonl"}')
    packed.rename(folder / "test.jsonl.zst")
    assert "train.jsonl" in _names(_read(folder))


def test_a_directory_without_data_says_so(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing here")
    assert "no data file" in _refused(tmp_path).what


@pytest.mark.parametrize(
    ("name", "count", "last_line"),
    [
        ("alpaca_en_demo.json", 999, 4992),
        ("gsm8k_train.jsonl", 7473, 7473),
        ("glaive_toolcall_en_demo.json", 300, None),
    ],
)
def test_real_files_are_read_with_the_line_of_each_row(
    shared: Path, name: str, count: int, last_line: int | None
) -> None:
    path = shared / "data" / name
    rows = _read(path)
    assert len(rows) == count
    line = int(rows[-1].place.removeprefix(f"{path}:"))
    assert last_line in (None, line)
    text = path.read_text(encoding="utf-8").split("\n")
    assert text[line - 1].lstrip().startswith("{")
    assert len(json.loads("[" + "\n".join(text[line - 1 :]).rstrip().removesuffix("]") + "]")) == 1


def test_a_key_that_stands_twice_makes_a_bad_row(tmp_path: Path) -> None:
    lines, array = tmp_path / "rows.jsonl", tmp_path / "rows.json"
    lines.write_text('{"text": "a"}\n{"text": "b", "text": "c"}\n{"text": "d", "more": {"x": 1, "x": 2}}\n')
    array.write_text('[{"text": "a"},\n {"text": "b", "text": "c"}, {"text": "d"}]\n')
    found = [row.fault for row in rows_of_file(lines)]
    assert [fault and fault.reason for fault in found] == [None, *["duplicate key"] * 2]
    assert [fault and fault.detail for fault in found] == [None, "'text'", "'x'"]
    assert [row.fault is not None for row in rows_of_file(array)] == [False, True, False]


def test_parquet_text_that_is_not_utf8_is_named_by_row_and_column(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    texts = pyarrow.array([b"good", b"b\xffd"], pyarrow.binary()).cast(pyarrow.string(), safe=False)
    file = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": [1, 2], "text": texts}), file)
    with pytest.raises(DataError) as caught:
        list(rows_of_file(file))
    assert caught.value.code == "parquet-damaged" and "'text'" in caught.value.what
    assert caught.value.where == f"{file}, row 2"


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_rows_that_refer_to_one_large_value_are_not_held_at_once(suffix: str, tmp_path: Path) -> None:
    """256 rows of a megabyte each, in a file of a few hundred bytes."""
    import pyarrow
    import pyarrow.parquet

    rows = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 256, pyarrow.int32()), ["a" * (1 << 20)])
    table, file = pyarrow.table({"text": rows}), tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        pyarrow.parquet.write_table(table, file, store_schema=False, compression="zstd")
        assert file.stat().st_size < 1000
    else:
        with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    tracemalloc.start()
    try:
        assert sum(len(row.values["text"]) for row in rows_of_file(file)) == 256 << 20
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_a_small_parquet_file_of_very_many_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow
    import pyarrow.parquet

    monkeypatch.setattr("ascendtune.data.table_rows._MOST_VALUES", 100_000)
    nulls = pyarrow.ListArray.from_arrays([0, 1_000_000], pyarrow.nulls(1_000_000, pyarrow.int8()))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"], "more": nulls}), tmp_path / "rows.parquet")
    assert _refused(tmp_path / "rows.parquet").code == "parquet-too-large"


def test_a_line_of_endless_length_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascendtune.data.files._LONGEST_LINE", 1 << 20)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a"}\n{"text": "' + "a" * (2 << 20) + '"}\n')
    with pytest.raises(DataError) as caught:
        list(rows_of_file(file))
    assert caught.value.code == "line-too-long"
    assert caught.value.where == f"{file}:2"


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="no /proc")
def test_a_file_of_the_kernel_is_not_data(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").symlink_to("/proc/kmsg")
    for path in (tmp_path, tmp_path / "rows.txt", Path("/dev/zero")):
        with pytest.raises(DataError) as caught:
            data_files(DatasetSpec(path=str(path)))
        assert caught.value.code == "not-a-regular-file"


def test_a_field_of_a_csv_may_be_as_long_as_an_article(tmp_path: Path) -> None:
    # The csv module gives up after 131,072 characters unless it is told otherwise.
    long = "a, b " * 60_000
    (tmp_path / "rows.csv").write_text(_csv([{"instruction": "q", "output": long}]))
    program = (
        "import sys; from ascendtune.data.read import read_rows; from ascendtune.data.spec import DatasetSpec\n"
        "[row] = read_rows(DatasetSpec(path=sys.argv[1])); print(len(row.values['output']))"
    )
    # The limit is the process's: another test may have raised it.
    command = [sys.executable, "-c", program, str(tmp_path / "rows.csv")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.stdout == f"{len(long)}\n", ended.stderr


def test_names_and_keys_by_the_ten_thousand_are_compared_in_time(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(100_000)]
    (tmp_path / "x.csv").write_text(f"{','.join([*names, 'c7'])}\n")
    pairs = ", ".join(f'"{name}": 1' for name in [*names, names[-1]])
    (tmp_path / "x.jsonl").write_text(f"{{{pairs}}}\n")
    # Each against each other would take minutes.
    with time_limit(20, "names that stand twice"):
        assert "'c7'" in _refused(tmp_path / "x.csv").what
        [row] = _read(tmp_path / "x.jsonl")
    assert row.fault is not None and "'c99999'" in row.fault.detail


def test_carriage_return_without_quotes_is_refused_and_in_quotes_read(tmp_path: Path) -> None:
    """Excel's "CSV (Macintosh)" ends lines with it; whatever the delimiter may be."""
    path = tmp_path / "rows.csv"
    path.write_bytes(b"question,answer\rhello,hi\r")
    with pytest.raises(DataError) as caught:
        list(_read(path))
    assert (caught.value.code, caught.value.where) == ("invalid-csv", f"{path}:1")
    path.write_bytes(b'question;answer\nhello;"one\rtwo"\n')
    assert [row.values for row in _read(path)] == [{"question": "hello", "answer": "one\rtwo"}]


def test_a_csv_may_be_separated_by_semicolons_and_end_in_empty_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('\ufeffa, b;c;\n"1, 2;";x;\n3;"y ""z""";\n')
    assert [row.values for row in read_rows(DatasetSpec(path=str(path)))] == [
        {"a, b": "1, 2;", "c": "x"},
        {"a, b": "3", "c": 'y "z"'},
    ]


def test_values_in_a_column_without_a_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b,\n1,2,3\n")
    with pytest.raises(DataError) as caught:
        list(read_rows(DatasetSpec(path=str(path))))
    assert caught.value.code == "invalid-csv"


def test_markdown_files_are_rows_unless_they_describe_other_data(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n\nText.\n")
    (tmp_path / "b.markdown").write_text("B\n")
    assert [row.values["text"] for row in read_rows(DatasetSpec(path=str(tmp_path)))] == ["B\n", "# A\n\nText.\n"]
    (tmp_path / "rows.jsonl").write_text('{"text": "row"}\n')
    assert [row.values["text"] for row in read_rows(DatasetSpec(path=str(tmp_path)))] == ["row"]


def test_directory_of_everything_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    monkeypatch.setattr(files, "_MOST_ENTRIES", 2)
    with pytest.raises(DataError) as caught:
        _read(tmp_path)
    assert caught.value.code == "directory-too-large"


def test_rows_that_begin_on_one_line_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[{"a": 1}, {"a": 2},\n{"a": 3}]')
    assert [row.place for row in _read(path)] == [f"{path}:1, row 1", f"{path}:1, row 2", f"{path}:2"]


def test_a_column_without_a_name_is_called_by_its_position(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(",a,,b,\n0,1,2,3,\n")
    assert [row.values for row in _read(tmp_path / "x.csv")] == [{"column_1": "0", "a": "1", "column_3": "2", "b": "3"}]


def test_place_of_a_bad_element_is_found_without_reading_what_follows(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('[{"a": 1},\n 7,\n {"a": 2},\n' + " oops")
    assert (_refused(path).code, _refused(path).where) == ("row-not-an-object", f"{path}:2")


def test_fewer_first_rows_are_held_where_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascendtune.data.read._MOST_OF_BEGINNING", 1000)
    nested: Any = "x" * 100
    for _ in range(2000):
        nested = [nested]
    drawn = (RawRow({"turns": [{"content": "x" * 200}], "deep": nested}, SourceFile(Path("x")), 1) for _ in range(100))
    assert len(first_rows(drawn, 50)) == 4
    assert len(list(drawn)) == 96
    small = (RawRow({"a": "b"}, SourceFile(Path("x")), 1) for _ in range(100))
    assert len(first_rows(small, 50)) == 50


_ROWS_OF_ARROW = [{"messages": [{"role": "user", "content": f"hi {number}"}]} for number in range(40)]


@pytest.mark.parametrize("is_stream", [True, False])
def test_drawn_faults_of_arrow_files_are_refused_and_never_end_the_process(is_stream: bool, tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import ipc

    table, path, draw = pyarrow.Table.from_pylist(_ROWS_OF_ARROW), tmp_path / "x.arrow", random.Random(3)
    with (ipc.new_stream if is_stream else ipc.new_file)(path, table.schema) as writer:
        writer.write_table(table)
    content, results = path.read_bytes(), Counter[str]()
    for _ in range(400):
        # The offsets of the texts are near the middle.
        at = draw.randrange(len(content) // 3, len(content) - 8)
        path.write_bytes(content[:at] + draw.choice((b"\xff" * 4, b"\xff\xff\xff\x7f", b"\x80")) + content[at + 4 :])
        try:
            _read(path)
            results["read"] += 1
        except DataError as error:
            results[error.code] += 1
    assert results["arrow-damaged"] > 100


def test_column_name_that_is_not_utf8_is_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(_parquet([{"prompt": "a"}]).replace(b"prompt", b"pr\xffmpt"))
    assert _refused(tmp_path / "x.parquet").code == "parquet-damaged"
