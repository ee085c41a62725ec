from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from ascendtune.data.conversation import RawRow, SourceFile
from ascendtune.data.read import first_rows
from rows_of_files import CONTENTS, ROWS, refused, rows_in
from time_limit import time_limit


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", CONTENTS)
def test_every_format_gives_the_same_rows(name: str, compressed: bool, tmp_path: Path) -> None:
    path = tmp_path / (name + ".gz" * compressed)
    path.write_bytes(gzip.compress(CONTENTS[name]) if compressed else CONTENTS[name])
    assert [row.values for row in rows_in(path)] == ROWS
    assert [row.values for row in rows_in(path, limit=2)] == ROWS[:2]


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows.parquet"])
def test_content_tells_the_format_where_the_name_does_not(name: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.data"
    path.write_bytes(CONTENTS[name])
    assert [row.values for row in rows_in(path)] == ROWS


def test_the_suffix_json_also_holds_lines_and_jsonl_an_array(tmp_path: Path) -> None:
    (tmp_path / "lines.json").write_bytes(CONTENTS["rows.jsonl"])
    (tmp_path / "array.jsonl").write_bytes(CONTENTS["rows.json"])
    assert [row.values for row in rows_in(tmp_path / "lines.json")] == ROWS
    assert [row.values for row in rows_in(tmp_path / "array.jsonl")] == ROWS


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows.csv"])
def test_a_utf8_mark_is_not_part_of_the_first_row(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" + CONTENTS[name])
    assert [row.values for row in rows_in(path)] == ROWS
    assert rows_in(path)[0].place == f"{path}:{1 if name == 'rows.jsonl' else 2}"


def test_text_has_one_row_a_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("first\n\n  second \nthird\n \t\n")
    assert [(row.values["text"], row.place) for row in rows_in(path)] == [
        ("first", f"{path}:1"),
        ("  second ", f"{path}:3"),
        ("third", f"{path}:4"),
    ]


@pytest.mark.parametrize("content", [b"a\r\rb\r c", b"a\r\n\nb\r c\n", b"a\n\rb\r\n c\r\n"])
def test_every_kind_of_line_end_ends_a_row_of_text(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_bytes(content)
    rows = [(row.values["text"], row.place) for row in rows_in(path)]
    assert rows == [("a", f"{path}:1"), ("b", f"{path}:3"), (" c", f"{path}:4")]


@pytest.mark.parametrize("name", ["rows.txt", "rows.md", "rows.csv", "rows.jsonl", "rows.json", "rows.parquet"])
def test_a_pointer_of_git_lfs_is_not_read_as_rows(name: str, tmp_path: Path) -> None:
    """Text would be trained on."""
    content = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123456\n"
    (tmp_path / name).write_text(content)
    assert refused(tmp_path / name).code == "git-lfs-pointer"


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
    "parquet cut off": ("x.parquet", CONTENTS["rows.parquet"][:-30], "", "Parquet file is damaged"),
    "not gzip": ("x.jsonl.gz", b'{"a": 1}\n', "", "gzip file is damaged"),
    "gzip cut off": ("x.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 9)[:-12], "", "gzip file is damaged"),
    "unknown format": ("x.xlsx", b"PK\x03\x04", "", "neither the name nor the content"),
}


@pytest.mark.parametrize("case", _BAD_FILES)
def test_an_unreadable_file_is_refused_with_its_place(case: str, tmp_path: Path) -> None:
    name, content, place, words = _BAD_FILES[case]
    path = tmp_path / name
    path.write_bytes(content)
    error = refused(path)
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
    assert [row.values for row in rows_in(tmp_path / name)] == [{"a": "ü"}, {"a": "\u2028😀"}]


def test_long_text_in_utf16_is_read_whole(tmp_path: Path) -> None:
    texts = [f"{number} ü😀" * (number % 50 + 1) for number in range(5000)]
    (tmp_path / "x.txt").write_bytes("\n".join(texts).encode("utf-16"))
    assert [row.values["text"] for row in rows_in(tmp_path / "x.txt")] == texts


@pytest.mark.parametrize(("text", "encoding"), [("Über Größe", "cp1252"), ("这是中文", "gb18030")])
def test_another_encoding_is_named(text: str, encoding: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(f"a\n{text}\n".encode(encoding))
    named = {"cp1252": "WINDOWS-1252", "gb18030": "GB18030"}[encoding]
    assert (
        f"iconv -f {named} -t UTF-8 {tmp_path}/x.csv > {tmp_path}/converted.csv" in refused(tmp_path / "x.csv").remedy
    )


def test_commands_in_remedies_quote_names_that_others_chose(tmp_path: Path) -> None:
    path = tmp_path / "it's $(here).json"
    path.write_text(json.dumps({"'; reboot; '": [{"a": 1}]}, indent=1))
    assert shlex.split(refused(path).remedy)[4:] == ["jq", ".\"'; reboot; '\"", path.name, ">", "rows.json"]
    path.write_bytes(b"[\xfc]")
    words = shlex.split(refused(path).remedy)
    assert str(path) in words and f"{tmp_path}/converted.json" in words


def test_a_flipped_byte_in_compressed_data_is_noticed(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(b'{"a": "some text"}\n' * 50))
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "x.jsonl.gz").write_bytes(content)
    refused(tmp_path / "x.jsonl.gz")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "blank"),
    [("x.jsonl.gz", b"\n"), ("x.jsonl.gz", b" \t\r\n"), ("x.csv.gz", b"\n"), ("x.txt.gz", b"\n"), ("x.txt.gz", b" \n")],
)
def test_a_small_file_of_many_blank_lines_is_refused_with_their_first(name: str, blank: bytes, tmp_path: Path) -> None:
    row = b"a\nb\n" if name == "x.csv.gz" else b'{"a": "b"}\n'
    (tmp_path / name).write_bytes(gzip.compress(row + blank * 20_000_000, 1))
    with time_limit(10, name):
        error = refused(tmp_path / name)
    assert error.code == "too-many-blank-lines"
    assert str(error.where).endswith(":3" if name == "x.csv.gz" else ":2")


def test_blank_lines_between_rows_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes((b'{"a": 1}\n' + b"\n" * 60_000) * 3)
    assert [row.number for row in rows_in(tmp_path / "x.jsonl")] == [1, 60_002, 120_003]


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
    rows = rows_in(path)
    assert len(rows) == count
    line = int(rows[-1].place.removeprefix(f"{path}:"))
    assert last_line in (None, line)
    text = path.read_text(encoding="utf-8").split("\n")
    assert text[line - 1].lstrip().startswith("{")
    assert len(json.loads("[" + "\n".join(text[line - 1 :]).rstrip().removesuffix("]") + "]")) == 1


def test_names_and_keys_by_the_ten_thousand_are_compared_in_time(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(100_000)]
    (tmp_path / "x.csv").write_text(f"{','.join([*names, 'c7'])}\n")
    pairs = ", ".join(f'"{name}": 1' for name in [*names, names[-1]])
    (tmp_path / "x.jsonl").write_text(f"{{{pairs}}}\n")
    # Each against each other would take minutes.
    with time_limit(20, "names that stand twice"):
        assert "'c7'" in refused(tmp_path / "x.csv").what
        [row] = rows_in(tmp_path / "x.jsonl")
    assert row.fault is not None and "'c99999'" in row.fault.detail


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
