"""Rows of data files, as a recipe reads them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from ascendtune.core.errors import DataError
from ascendtune.data.conversation import RawRow
from ascendtune.data.read import read_rows
from ascendtune.data.spec import DatasetSpec

ROWS = [{"a": "one", "b": ""}, {"a": 'zwei, "zwei"', "b": "x\ny"}, {"a": "三\u2028", "b": "\\ud"}]

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00"), max_size=12)


def rows_in(path: Path, **keys: Any) -> list[RawRow]:
    return list(read_rows(DatasetSpec(path=str(path), **keys)))


def refused(path: Path, **keys: Any) -> DataError:
    with pytest.raises(DataError) as raised:
        rows_in(path, **keys)
    assert raised.value.exit_code == 2
    return raised.value


def csv_of(rows: list[dict[str, str]], **how: Any) -> str:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]), **how)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def parquet_of(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


CONTENTS: dict[str, bytes] = {
    "rows.json": json.dumps(ROWS, ensure_ascii=False, indent=1).encode(),
    "rows.jsonl": b"".join(json.dumps(row).encode() + b"\n" for row in ROWS),
    "rows.ndjson": b"\n".join(json.dumps(row, ensure_ascii=False).encode() + b"\r\n" for row in ROWS),
    "rows.csv": csv_of(ROWS).encode(),
    "rows.tsv": csv_of(ROWS, delimiter="\t").encode(),
    "rows.parquet": parquet_of(ROWS),
}
