from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from ascendtune.cli.init import _decided
from ascendtune.cli.init_data import look_at_data


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"data": {"x": f"one {i}", "y": f"two {i}", "z": i}} for i in range(9)]))
    return str(path)


@pytest.mark.parametrize(
    ("typed", "columns"),
    [
        ("\n", {"prompt": "data.x", "completion": "data.y"}),
        ("n\ndata.y\ndata.x\n", {"prompt": "data.y", "completion": "data.x"}),
        ("n\ndata.y\n\n", {"prompt": "data.y", "completion": "data.y"}),
    ],
)
def test_guess_is_confirmed_by_one_answer_or_replaced(
    rows: str, typed: str, columns: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    facts = _decided(look_at_data(rows), yes=False)
    assert not facts.is_undecided and facts.columns == columns and len(facts.rows) == 9


@pytest.mark.parametrize("column", ["nothing", "data.z"])
def test_columns_that_do_not_work_leave_the_question_open(
    rows: str, column: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(f"n\n{column}\n\n"))
    assert _decided(look_at_data(rows), yes=False).is_undecided
    assert "warning: " in capsys.readouterr().err
