from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascendtune.data.inspect import Inspection
from ascendtune.data.load import load_rows
from ascendtune.data.spec import DataSection, Task
from ascendtune.data.store import IGNORED, TokenDataset
from ascendtune.data.template import ChatTemplate
from ascendtune.data.tokenize import groups_of, tokenize
from ascendtune.data.tokenize_texts import tokenize_texts
from ascendtune.data.tokenizer import Tokenizer

ROWS: dict[Task, list[dict[str, Any]]] = {
    "conversations": [
        {"prompt": "2 + 3?", "completion": "Five."},
        {"prompt": "你好吗？", "completion": "很好 🙂 谢谢你，今天天气很好。"},
        {"prompt": "Say a lot", "completion": "word " * 40},
    ],
    "pairs": [{"prompt": "2 + 3?", "chosen": "Five.", "rejected": "Six, I think."}],
    "text": [{"text": "Two and three make five."}, {"text": "五 " * 40}],
}


def _inspection(path: Path, rows: list[dict[str, Any]], task: Task, model: Path, max_length: int = 48) -> Inspection:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = Tokenizer.load(model)
    section = DataSection.model_validate({"train": [{"path": str(path)}], "max_length": max_length})
    template = None if task == "text" else ChatTemplate.load("auto", tokenizer)
    return Inspection(section, task, tokenizer, template, lambda spec: Path(spec.path))


@pytest.mark.parametrize("task", ROWS)
def test_tokens_and_labels_are_those_that_training_reads(task: Task, tiny_model: Path, tmp_path: Path) -> None:
    inspection = _inspection(tmp_path / "rows.jsonl", ROWS[task], task, tiny_model)
    most = inspection.section.max_length
    loaded = load_rows(inspection.section.train, task, seed=0, on_bad_row="fail", resolve=inspection.resolve)
    (tmp_path / "tokens").mkdir()
    if inspection.template is None:
        tokenize_texts(
            loaded.rows, inspection.tokenizer, tmp_path / "tokens", max_length=most, on_long_row="truncate", processes=1
        )
    else:
        groups = groups_of(loaded.rows, task)
        tokenize(groups, inspection.template, tmp_path / "tokens", max_length=most, on_long_row="truncate", processes=1)
    dataset = TokenDataset.open(tmp_path / "tokens")
    stored = [dataset.row(index) for index in range(len(dataset))]
    if task == "text":
        # A long text becomes several rows, all of whose tokens are trained on.
        shown = [each for row in inspection.rows(1, 9) for each in row.sequences]
        assert np.concatenate([ids for ids, _ in stored]).tolist() == [i for each in shown for i in each.token_ids]
        assert all(all(each.trained) for each in shown)
        pieces = [segment.tokens for each in shown for segment in each.segments]
        assert pieces == [len(ids) for ids, _ in stored] and [each.is_split for each in shown] == [False, True]
        return
    shown = [each for row in inspection.rows(1, 9) for each in row.sequences]
    assert len(shown) == len(stored)
    for each, (input_ids, labels) in zip(shown, stored, strict=True):
        assert each.token_ids[:most] == input_ids.tolist()
        assert each.trained[:most] == (labels != IGNORED).tolist()
        assert sum(segment.tokens for segment in each.segments) == len(each.token_ids)
        assert all(segment.is_cut == (at >= most) for at, segment in _starts(each.segments))


def _starts(segments: list[Any]) -> list[tuple[int, Any]]:
    begins = np.cumsum([0, *(segment.tokens for segment in segments)])
    return list(zip(begins.tolist(), segments, strict=False))


def test_segments_hold_the_text_that_the_template_writes(tiny_model: Path, tmp_path: Path) -> None:
    inspection = _inspection(tmp_path / "rows.jsonl", ROWS["conversations"], "conversations", tiny_model, 4096)
    for row, given in zip(inspection.rows(1, 9), ROWS["conversations"], strict=True):
        (sequence,) = row.sequences
        trained = "".join(each.text for each in sequence.segments if each.is_trained)
        assert trained == given["completion"] + "<|im_end|>"
        assert row.problem is None


def test_rows_that_cannot_be_trained_on_say_why(tiny_model: Path, tmp_path: Path) -> None:
    rows = [
        {"prompt": "x", "completion": "y"},
        {"prompt": "x", "completion": ""},
        {"prompt": "long " * 60, "completion": "y"},
    ]
    inspection = _inspection(tmp_path / "rows.jsonl", rows, "conversations", tiny_model)
    assert [row.problem for row in inspection.rows(2, 2)] == [
        "no answer (turn 2 (assistant) is empty)",
        "no answer left within max_length",
    ]
    assert inspection.rows(4, 1) == []


@pytest.mark.parametrize("choice", ["drop", "fail"])
@pytest.mark.parametrize("task", ["conversations", "pairs"])
def test_a_long_row_that_is_not_cut_is_left_out_whole(
    task: Task, choice: str, tiny_model: Path, tmp_path: Path
) -> None:
    inspection = _inspection(tmp_path / "rows.jsonl", ROWS[task], task, tiny_model, max_length=20)
    assert any(segment.is_cut for row in inspection.rows(1, 9) for each in row.sequences for segment in each.segments)
    section = inspection.section.model_copy(update={"on_long_row": choice})
    rows = replace(inspection, section=section).rows(1, 9)
    is_long = [any(len(each.token_ids) > 20 for each in row.sequences) for row in rows]
    assert any(is_long)
    assert [row.problem == f"longer than max_length, with data.on_long_row: {choice}" for row in rows] == is_long
    assert not any(segment.is_cut for row in rows for each in row.sequences for segment in each.segments)


def test_the_truncated_part_is_one_segment(tiny_model: Path, tmp_path: Path) -> None:
    turns = [{"role": role, "content": f"{role} says"} for role in ("user", "assistant") * 6]
    inspection = _inspection(tmp_path / "rows.jsonl", [{"messages": turns}], "conversations", tiny_model)
    [row] = inspection.rows(1, 1)
    assert [segment.is_cut for segment in row.sequences[0].segments].count(True) == 1
    assert sum(segment.tokens for segment in row.sequences[0].segments) == len(row.sequences[0].token_ids)


def test_duplicates_are_counted(tiny_model: Path, tmp_path: Path) -> None:
    rows = [*ROWS["conversations"], ROWS["conversations"][0]]
    inspection = _inspection(tmp_path / "rows.jsonl", rows, "conversations", tiny_model)
    assert inspection.count_duplicates() == (4, 1)
