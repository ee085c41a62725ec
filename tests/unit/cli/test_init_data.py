"""Tables whose first line may be a row, and pairs whose question has another name, read by `init`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascendtune.cli.init_data import inspect_data
from ascendtune.core.errors import DataError

ROWS = "".join(f"Wie geht Nummer {n}?,So geht sie schön {n}.,Auch so {n}.\n" for n in range(12))


def test_a_name_that_two_columns_have_is_refused_and_does_not_become_a_row(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(f"question,answer,answer\n{ROWS}")
    with pytest.raises(DataError) as caught:
        inspect_data(str(tmp_path / "x.csv"))
    assert caught.value.code == "invalid-csv-header"


@pytest.mark.parametrize("encoding", ["utf-8", "windows-1252"])
def test_a_first_row_with_two_equal_fields_is_a_row_in_either_encoding(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(f"Wie geht es?,Gut.,Gut.\n{ROWS}".encode(encoding))
    found = inspect_data(str(tmp_path / "x.csv"))
    assert found.reading == ({"header": False} | ({} if encoding == "utf-8" else {"encoding": encoding}))
    assert list(found.raw[0].values.values()) == ["Wie geht es?", "Gut.", "Gut."]


@pytest.mark.parametrize(("name", "is_undecided"), [("Frage", False), ("context", True)])
def test_the_question_of_a_pair_may_have_another_name(name: str, is_undecided: bool, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{name: f"Warum {n}?", "chosen": f"Weil {n}.", "rejected": f"So {n}."} for n in "abc"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    facts = inspect_data(str(file))
    assert (facts.format, facts.columns["prompt"], facts.is_undecided) == ("preference", name, is_undecided)
    with pytest.raises(DataError) as caught:
        inspect_data(str(file), format="preference")
    assert caught.value.code == "no-usable-rows"


def test_no_other_column_stands_for_an_answer_that_is_empty(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"instruction": "Why?", "input": f"{n} is a letter.", "output": ""} for n in "abc"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError) as caught:
        inspect_data(str(file))
    assert caught.value.code == "no-usable-rows" and "turn 2 (assistant) is empty" in caught.value.what
