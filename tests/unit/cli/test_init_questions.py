from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from ascendtune.cli.draft import _dataset
from ascendtune.cli.init import _decided
from ascendtune.cli.init_data import inspect_data


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
    facts = _decided(inspect_data(rows), yes=False)
    assert not facts.is_undecided and facts.columns == columns and len(facts.rows) == 9


def test_another_answer_than_yes_or_no_is_told_what_may_be_typed(
    rows: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("data.y\nn\ndata.y\ndata.x\n"))
    facts = _decided(inspect_data(rows), yes=False)
    assert facts.columns == {"prompt": "data.y", "completion": "data.x"}
    assert "type y to accept, or n to name the columns one by one" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stage", "format", "words"),
    [
        (None, "prompt_completion", ("prompt", "completion")),
        ("pretrain", "text", ("text",)),
        ("preference", "preference", ("prompt", "chosen", "rejected")),
    ],
)
def test_columns_that_are_asked_for_are_those_of_the_stage(
    tmp_path: Path, stage: str | None, format: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"instruction": "a", "b": f"b {n}", "c": f"c {n}"} for n in range(3)]))
    facts = inspect_data(str(path), stage=stage)
    assert facts.is_undecided and (facts.format, facts.undecided_columns) == (format, words)
    assert f"columns: {{{', '.join(f'{word}: TODO' for word in words)}}}" in "".join(_dataset(facts))


@pytest.mark.parametrize("column", ["nothing", "data.z"])
def test_columns_that_do_not_work_leave_the_question_open(
    rows: str, column: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(f"n\n{column}\n\n"))
    assert _decided(inspect_data(rows), yes=False).is_undecided
    assert "warning: " in capsys.readouterr().err
