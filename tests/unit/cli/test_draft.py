"""The length of the first rows: the work is bounded for rows of any length."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascendtune.cli import draft
from ascendtune.cli.init_data import inspect_data, preview
from ascendtune.data.conversation import conversations_of
from ascendtune.data.tokenizer import Tokenizer


def _rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _length(model: Path, path: Path, answers: list[str]) -> draft.Length:
    rows = [{"prompt": "2 + 2?", "completion": answer} for answer in answers]
    return draft.longest_row(draft.inspect_model(str(model)), [inspect_data(_rows(path, rows))], "chatml")


@pytest.mark.parametrize(("rows", "accumulate"), [(150, 1), (200, 8)])
def test_few_rows_make_small_steps(rows: int, accumulate: int, tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"prompt": "{number}?", "completion": "{number}"}}\n' for number in range(rows)))
    text, _ = draft.draft(draft.inspect_model(str(tiny_model)), [inspect_data(str(path))])
    assert f"  accumulate: {accumulate}  #" in text


def test_longest_row_is_counted_exactly_where_rows_are_short(tiny_model: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    length = _length(tiny_model, tmp_path / "rows.jsonl", ["four", "It is four. " * 20, "4"])
    answer = len(tokenizer.encode("It is four. " * 20))
    assert length.is_exact and answer < length.tokens < answer + 60


@pytest.mark.parametrize("answers", [["four " * 100_000, "4"], ["four " * 1000] * 60], ids=["one row", "many rows"])
def test_work_on_long_rows_is_bounded_and_the_length_is_an_estimate(
    answers: list[str], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    characters = []
    encode = Tokenizer.encode

    def counting(tokenizer: Tokenizer, text: str) -> list[int]:
        characters.append(len(text))
        return encode(tokenizer, text)

    monkeypatch.setattr(Tokenizer, "encode", counting)
    monkeypatch.setattr(draft, "_CHARACTERS_OF_A_ROW", 10_000)
    monkeypatch.setattr(draft, "_CHARACTERS_OF_ALL_ROWS", 100_000)
    length = _length(tiny_model, tmp_path / "rows.jsonl", answers)
    assert sum(characters) < 110_000
    whole = len(encode(Tokenizer.load(tiny_model), "four " * 2000)) * len(answers[0]) / len("four " * 2000)
    assert not length.is_exact and length.tokens == pytest.approx(whole, rel=0.03)


def test_preview_of_many_columns_and_long_values_stays_short(tmp_path: Path) -> None:
    row = {"prompt": " " * 300 + "2 + 2?", "completion": "4" * 10**6, **{f"c{n}": "text" for n in range(10**4)}}
    lines = preview(inspect_data(_rows(tmp_path / "rows.jsonl", [row, row])))
    assert len(lines) < 100 and max(map(len, lines)) < 200
    assert sum("2 + 2?" in line for line in lines) == 2 and "    and 9,962 more columns" in lines


def test_preview_names_columns_that_are_not_read_and_a_thought_among_them(tmp_path: Path) -> None:
    rows = [
        {
            "Question": f"What is {n}?",
            "cot_type": "math",
            "Complex_CoT": f"Let me think about it: {n} is a letter, and it",
            "Response": f"It is {n}.",
        }
        for n in "abc"
    ]
    shown = "\n".join(preview(inspect_data(_rows(tmp_path / "rows.jsonl", rows))))
    assert "\n  not read: cot_type, Complex_CoT\n  if Complex_CoT is the thought before the answer" in shown
    named = {"prompt": "Question", "completion": "Response", "reasoning_content": "Complex_CoT"}
    facts = inspect_data(_rows(tmp_path / "rows.jsonl", rows), columns=named)
    assert preview(facts)[-1] == "  not read: cot_type"
    assert conversations_of(facts.rows[0])[0].messages[-1]["reasoning_content"].startswith("Let me think")
    nested = [{"q.text": "q", "a": {"text": "a"}, "b.text": "x"}] * 2
    columns = {"prompt": "q.text", "completion": "a.text"}
    assert preview(inspect_data(_rows(tmp_path / "rows.jsonl", nested), columns=columns))[-1] == "  not read: b.text"
    plain = [{"prompt": "q", "completion": "a", "chat_template_kwargs": {}, "system": "s", "rethinking": "x"}] * 2
    assert preview(inspect_data(_rows(tmp_path / "rows.jsonl", plain)))[-1] == "  not read: rethinking"


def test_undecided_rows_are_not_longer_than_the_model_takes(tiny_model: Path, tmp_path: Path) -> None:
    data = inspect_data(_rows(tmp_path / "rows.jsonl", [{"x": "one two", "y": "three four"}] * 9))
    model = draft.inspect_model(str(tiny_model))
    text, longest = draft.draft(replace(model, max_length=96), [data])
    assert data.is_undecided and longest is None and "  max_length: 96  #" in text
