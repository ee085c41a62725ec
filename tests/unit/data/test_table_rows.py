from __future__ import annotations

import csv
import gzip
import io
import random
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
from ascendtune.data.read import read_rows, rows_of_file
from ascendtune.data.spec import DatasetSpec
from rows_of_files import CONTENTS, TEXTS, csv_of, parquet_of, refused, rows_in


def test_parquet_rows_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(CONTENTS["rows.parquet"])
    assert [row.place for row in rows_in(path)] == [f"{path}, row {number}" for number in (1, 2, 3)]


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
    found = list(rows_in(tmp_path / "saved"))
    assert [row.values for row in found] == rows
    assert found[4].place == f"{tmp_path / 'saved' / 'train' / 'data-00000-of-00001.arrow'}, row 5"
    cut = tmp_path / "cut.arrow"
    cut.write_bytes(content[:-100])
    assert refused(cut).code == "arrow-damaged"


def test_arrow_file_that_is_not_a_stream_is_read(tmp_path: Path) -> None:
    """As polars and Feather write it."""
    import pyarrow.ipc

    path = tmp_path / "rows.arrow"
    table = pyarrow.Table.from_pylist([{"n": number} for number in range(5)])
    with pyarrow.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=2)
    assert [row.values["n"] for row in rows_in(path)] == [0, 1, 2, 3, 4]
    packed = tmp_path / "rows.arrow.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [row.values["n"] for row in rows_in(packed)] == [0, 1, 2, 3, 4]
    path.write_bytes(path.read_bytes()[:-100])
    assert refused(path).code == "arrow-damaged"


def test_a_key_that_other_parquet_rows_have_is_absent(tmp_path: Path) -> None:
    """A tool call of one row would be trained on with the arguments of the others."""
    rows = [
        {"turns": [{"calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}], "id": 1},
        {"turns": [{"calls": [{"name": "clock", "arguments": {"zone": "UTC"}}], "said": None}], "id": None},
    ]
    path = tmp_path / "rows.parquet"
    path.write_bytes(parquet_of(rows))
    del rows[1]["turns"][0]["said"]  # type: ignore[index]
    assert [row.values for row in rows_in(path)] == rows


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=8), st.data())
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
        rows_read = rows_in(path)
        assert [tuple(row.values.values()) for row in rows_read] == rows
        assert [row.place for row in rows_read] == [f"{path}:{line}" for line in begins]

        ragged = data.draw(st.sampled_from(["x\n", "x,y,z\n"]))
        path.write_text(file.getvalue() + ragged + '"p","q"\n', encoding="utf-8", newline="")
        error = refused(path)
    assert error.where == f"{path}:{file.getvalue().count(chr(10)) + 1}"
    assert "the header has 2" in error.what


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
    assert refused(tmp_path / "rows.parquet").code == "parquet-too-large"


def test_a_field_of_a_csv_may_be_as_long_as_an_article(tmp_path: Path) -> None:
    # The csv module gives up after 131,072 characters unless it is told otherwise.
    long = "a, b " * 60_000
    (tmp_path / "rows.csv").write_text(csv_of([{"instruction": "q", "output": long}]))
    program = (
        "import sys; from ascendtune.data.read import read_rows; from ascendtune.data.spec import DatasetSpec\n"
        "[row] = read_rows(DatasetSpec(path=sys.argv[1])); print(len(row.values['output']))"
    )
    # The limit is the process's: another test may have raised it.
    command = [sys.executable, "-c", program, str(tmp_path / "rows.csv")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.stdout == f"{len(long)}\n", ended.stderr


def test_carriage_return_without_quotes_is_refused_and_in_quotes_read(tmp_path: Path) -> None:
    """Excel's "CSV (Macintosh)" ends lines with it; whatever the delimiter may be."""
    path = tmp_path / "rows.csv"
    path.write_bytes(b"question,answer\rhello,hi\r")
    with pytest.raises(DataError) as caught:
        list(rows_in(path))
    assert (caught.value.code, caught.value.where) == ("invalid-csv", f"{path}:1")
    path.write_bytes(b'question;answer\nhello;"one\rtwo"\n')
    assert [row.values for row in rows_in(path)] == [{"question": "hello", "answer": "one\rtwo"}]


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


def test_a_column_without_a_name_is_called_by_its_position(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(",a,,b,\n0,1,2,3,\n")
    assert [row.values for row in rows_in(tmp_path / "x.csv")] == [
        {"column_1": "0", "a": "1", "column_3": "2", "b": "3"}
    ]


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
            rows_in(path)
            results["read"] += 1
        except DataError as error:
            results[error.code] += 1
    assert results["arrow-damaged"] > 100


def test_column_name_that_is_not_utf8_is_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(parquet_of([{"prompt": "a"}]).replace(b"prompt", b"pr\xffmpt"))
    assert refused(tmp_path / "x.parquet").code == "parquet-damaged"
