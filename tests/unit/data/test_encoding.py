from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import DataError
from ascendtune.data.encoding import certain_encoding, likely_encoding
from ascendtune.data.read import rows_of_file

GERMAN = "Können Sie mir sagen, wie groß „Österreich“ ist? – Natürlich: für 5 €."
FRENCH = "Où est la forêt ? « Là-bas », répond-elle, à côté de l'œuvre."
CHINESE = "法国的首都是哪里？法国的首都是巴黎，欢迎您来旅游。"
JAPANESE = "フランスの首都はどこですか？パリです。"
RUSSIAN = "Какая столица Франции? Это Париж."
HUNGARIAN = "Hogyan kérhetek visszatérítést? Kérjük, töltse ki az űrlapot; a következő két napban válaszolunk."
PORTUGUESE = "Quais são as opções? As informações estão na página de devoluções; não há custos, só põe o código."
POLISH = "Jaka jest stolica? Łódź, Żyrardów i Częstochowa."


def lines(text: str, encoding: str) -> list[bytes]:
    return [f"{text}\n".encode(encoding)] * 3


@pytest.mark.parametrize(
    ("text", "written", "found"),
    [
        (GERMAN, "windows-1252", "windows-1252"),
        (FRENCH, "windows-1252", "windows-1252"),
        (CHINESE, "gb18030", "gb18030"),
        ("only ASCII", "ascii", None),
        (GERMAN, "utf-8", None),
        (CHINESE, "utf-8", None),
        ("臺灣的首都是臺北，歡迎您來旅遊。", "big5", None),
        (JAPANESE, "shift_jis", None),
        ("한국의 수도는 어디입니까? 서울입니다.", "euc-kr", None),
        (RUSSIAN, "windows-1251", None),
        (POLISH, "windows-1250", None),
        (HUNGARIAN, "windows-1250", None),
        (PORTUGUESE, "windows-1252", "windows-1252"),
        ("Größe der Straße: schön, nämlich größer.", "cp850", None),
        (GERMAN, "mac-roman", None),
    ],
)
def test_an_encoding_is_taken_where_its_characters_leave_no_doubt(text: str, written: str, found: str | None) -> None:
    assert certain_encoding(lines(text, written)) == found


def test_a_file_in_two_encodings_is_in_no_certain_one() -> None:
    assert certain_encoding([*lines(GERMAN, "windows-1252"), *lines(GERMAN, "utf-8")]) is None


@pytest.mark.parametrize(
    ("text", "encoding"),
    [(GERMAN, "windows-1252"), (CHINESE, "gb18030"), (JAPANESE, "shift_jis"), (RUSSIAN, "windows-1251")],
)
def test_a_message_proposes_the_likely_encoding(text: str, encoding: str) -> None:
    assert likely_encoding(text.encode(encoding)) == encoding


ROWS = [{"a": GERMAN}, {"a": "ß\n"}]
FILES: dict[str, str] = {
    "x.csv": f'a\n"{GERMAN}"\n"ß\n"\n',
    "x.tsv": f'a\n"{GERMAN}"\n"ß\n"\n',
    "x.json": json.dumps(ROWS, ensure_ascii=False, indent=1),
    "x.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS),
    "x": json.dumps(ROWS, ensure_ascii=False),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("packed", [False, True])
def test_rows_in_another_encoding_are_those_of_utf8(name: str, packed: bool, tmp_path: Path) -> None:
    content = FILES[name].encode("windows-1252")
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(content) if packed else content)
    read = list(rows_of_file(path, "windows-1252"))
    assert [row.values for row in read] == ROWS
    plain = tmp_path / f"utf8-{name}"
    plain.write_text(FILES[name], encoding="utf-8")
    assert [row.place.rpartition(":")[2] for row in read] == [
        row.place.rpartition(":")[2] for row in rows_of_file(plain)
    ]


@pytest.mark.parametrize(("name", "values"), [("x.txt", [GERMAN, "ß"]), ("x.md", [f"{GERMAN}\nß\n"])])
def test_text_in_another_encoding_is_read(name: str, values: list[str], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(f"{GERMAN}\nß\n".encode("windows-1252"))
    assert [row.values["text"] for row in rows_of_file(tmp_path / name, "windows-1252")] == values


def _refused(path: Path, **how: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        list(rows_of_file(path, **how))
    return caught.value


def test_text_that_is_not_in_the_given_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"a\x81b\n")
    assert _refused(tmp_path / "x.txt", encoding="windows-1252").code == "encoding-mismatch"


def test_text_in_utf16_needs_no_encoding_and_takes_none(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes("ü\n".encode("utf-16"))
    assert [row.values["text"] for row in rows_of_file(tmp_path / "x.txt", "windows-1252")] == ["ü"]


def test_the_remedy_is_a_command_with_the_path_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "my rows.csv").write_bytes(f"a\n{GERMAN}\n".encode("windows-1252"))
    remedy = _refused(tmp_path / "my rows.csv").remedy
    assert "set encoding: windows-1252" in remedy
    assert f"iconv -f WINDOWS-1252 -t UTF-8 '{tmp_path}/my rows.csv' > {tmp_path}/converted.csv" in remedy


def test_a_table_without_a_header_has_numbered_columns(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('a,,"b\nc"\nd,e,f\n')
    read = list(rows_of_file(tmp_path / "x.csv", header=False))
    assert [row.values for row in read] == [
        {"column_1": "a", "column_2": "", "column_3": "b\nc"},
        {"column_1": "d", "column_2": "e", "column_3": "f"},
    ]
    assert [row.number for row in read] == [1, 3]
    (tmp_path / "y.csv").write_text("a,b\nd\n")
    assert "the first row has 2" in _refused(tmp_path / "y.csv", header=False).what
    (tmp_path / "z.csv").write_text("a,a\nd,e\n")
    assert _refused(tmp_path / "z.csv").code == "invalid-csv-header"
    assert next(row.values for row in rows_of_file(tmp_path / "z.csv", header=False)) == {
        "column_1": "a",
        "column_2": "a",
    }
