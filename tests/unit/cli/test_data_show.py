from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ascendtune.cli import data_show


@pytest.fixture
def ascendtune(in_process: Any) -> Any:
    return in_process


@pytest.fixture
def recipe(tmp_path: Path, tiny_model: Path) -> Path:
    rows = [{"prompt": "2 + 3?", "completion": "<b>Five.</b>"}] * 2
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump({"model": {"path": str(tiny_model)}, "data": {"train": "rows.jsonl"}}))
    return path


def test_data_show_marks_what_is_trained_on_and_what_is_cut(ascendtune: Any, recipe: Path) -> None:
    shown = ascendtune("data", "show", recipe, "-n", "1")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("row 1, rows.jsonl:1, format prompt_completion\n  prompt: 2 + 3?\n")
    assert "    «<b>Five.</b><|im_end|>»\n" in shown.stdout and "row 2" not in shown.stdout
    cut = ascendtune("data", "show", recipe, "--row", "2", "-n", "1", "--stats", "data.max_length=22").stdout
    assert cut.startswith("row 2, rows.jsonl:2") and "; cut at max_length 22, " in cut and "✂" in cut
    assert "duplicates: 1 of 2 rows equal an earlier one\n" in cut


def test_a_text_of_stage_pretrain_is_split_and_nothing_of_it_is_cut(ascendtune: Any, recipe: Path) -> None:
    (recipe.parent / "rows.jsonl").write_text(json.dumps({"text": "word " * 3000}) + "\n")
    shown = ascendtune("data", "show", recipe, "method.stage=pretrain", "data.max_length=32").stdout
    (summary,) = re.findall(r"as the model reads it: (.*)", shown)
    assert re.fullmatch(r"[\d,]+ tokens, all trained on, as [\d,]+ rows of up to 32", summary)
    # Two rows are shown of the many, and the beginning of the values as read.
    assert shown.count("✂") == 1 and len(shown) < 3000
    dropped = ascendtune("data", "show", recipe, "method.stage=pretrain", "data.max_length=32", "data.on_long_row=drop")
    assert "not trained on: longer than max_length" in dropped.stdout and "✂" not in dropped.stdout


def test_stats_alone_show_no_rows(ascendtune: Any, recipe: Path) -> None:
    shown = ascendtune("data", "show", recipe, "--stats").stdout
    assert shown.startswith("data: 2 rows read") and "row 1," not in shown


def test_tokens_of_a_row_that_is_left_out_are_not_cut(ascendtune: Any, recipe: Path) -> None:
    words = ("data", "show", recipe, "-n", "1", "--tokens")
    whole, cut, dropped = (
        ascendtune(*words, *more).stdout.splitlines()
        for more in ([], ["data.max_length=22"], ["data.max_length=22", "data.on_long_row=drop"])
    )
    assert any("  cut  " in line for line in cut)
    assert "not trained on: longer than max_length" in dropped[3]
    assert [*dropped[:3], *dropped[4:]] == whole


def test_stats_count_rows_of_which_none_keeps_an_answer(ascendtune: Any, recipe: Path, tmp_path: Path) -> None:
    words = ("data", "show", recipe, "-n", "1", "--stats", "data.max_length=8")
    shown = ascendtune(*words)
    assert shown.returncode == 0, shown.stderr
    assert "data: 2 rows read, 0 used, 2 dropped\n" in shown.stdout and "duplicates: 1 of 2 rows" in shown.stdout
    assert "dropped 2: no answer left within max_length" in shown.stdout
    assert "leaves no row with an answer" in " ".join(shown.stderr.split())
    as_json = json.loads(ascendtune(*words, "--json").stdout)
    assert as_json["stats"]["report"]["rows_kept"] == 0


def test_packed_shows_the_rows_that_share_a_sequence(ascendtune: Any, recipe: Path) -> None:
    shown = ascendtune("data", "show", recipe, "--packed", "--json", "data.max_length=64")
    assert shown.returncode == 0, shown.stderr
    (pack,) = json.loads(shown.stdout)["rows"]
    assert sorted(each["name"] for each in pack["sequences"]) == ["kept row 1", "kept row 2"]
    assert pack["tokens"] == sum(len(each["token_ids"]) for each in pack["sequences"]) <= pack["capacity"] == 64
    for each in pack["sequences"]:
        assert [part["text"] for part in each["segments"] if part["is_trained"]] == ["<b>Five.</b><|im_end|>"]
    text = ascendtune("data", "show", recipe, "--packed", "data.max_length=64", "data.packing=true")
    assert text.stdout.startswith(f"sequence 1 of 1: 2 rows, {pack['tokens']} of 64 tokens\n  kept row ")
    assert text.stdout.count("    «<b>Five.</b><|im_end|>»\n") == 2 and "auto" not in text.stderr
    refused = ascendtune("data", "show", recipe, "--packed", "data.packing=false")
    assert refused.returncode == 2 and "code: not-packed" in refused.stderr


@pytest.mark.parametrize("words", [(), ("--json",), ("--packed",), ("--stats",)])
def test_data_show_refuses_the_number_of_a_row_that_is_not_there(
    ascendtune: Any, recipe: Path, words: tuple[str, ...]
) -> None:
    for number in (3, 10**20):
        shown = ascendtune("data", "show", recipe, "--row", str(number), *words)
        assert shown.returncode == 2 and "code: row-missing" in shown.stderr
        assert bool(shown.stdout) is ("--json" in words)
    assert "the data has 2 rows" in shown.stderr or "--packed" in words


def test_data_show_writes_json(ascendtune: Any, recipe: Path) -> None:
    shown = json.loads(ascendtune("data", "show", recipe, "-n", "1", "--json").stdout)
    (row,) = shown["rows"]
    assert row["values"] == {"prompt": "2 + 3?", "completion": "<b>Five.</b>"} and row["problem"] is None
    (sequence,) = row["sequences"]
    assert len(sequence["token_ids"]) == len(sequence["trained"]) == len(sequence["token_texts"])


@pytest.fixture
def pairs(recipe: Path) -> Path:
    row = {"prompt": "2 + 3?", "chosen": "<b>Five.</b>", "rejected": "Six, I think."}
    (recipe.parent / "rows.jsonl").write_text(json.dumps(row) + "\n")
    recipe.write_text(recipe.read_text() + "method: {stage: preference}\n")
    return recipe


def test_chosen_and_rejected_stand_beside_each_other_on_a_terminal(
    ascendtune: Any, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = ascendtune("data", "show", pairs).stdout
    assert piped.index("«<b>Five.</b>") < piped.rindex("\n  rejected: ") < piped.index("«Six, ")
    monkeypatch.setattr(data_show, "width", lambda stream: 80)
    shown = ascendtune("data", "show", pairs).stdout
    (answers,) = (line for line in shown.splitlines() if "Five.</b><|im_end|>" in line)
    assert answers.index("«<b>Five.</b>") < answers.index("│") < answers.index("«Six, I think.")
    assert "│" not in ascendtune("data", "show", pairs, "--tokens").stdout
