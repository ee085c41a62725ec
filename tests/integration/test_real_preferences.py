"""Real data sets of preferences and of plain text: what is prepared is what transformers makes of the same rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ascendtune.data.prepare import PreparedData, prepare
from ascendtune.data.spec import DataSection, Task
from ascendtune.data.store import IGNORED, TokenDataset

MAX_LENGTH = 1024
Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Data:
    file: str
    rows: int
    task: Task
    read: Callable[[list[dict[str, Any]]], list[tuple[Messages, Messages, float]]]
    """Both conversations and the value of every row, written down here once more."""
    columns: dict[str, str]


def _turn(turn: dict[str, Any]) -> dict[str, str]:
    if "from" in turn:
        role = {"human": "user", "gpt": "assistant", "system": "system"}[turn["from"]]
        return {"role": role, "content": turn["value"]}
    said = turn["content"]
    return {"role": turn["role"], "content": said if isinstance(said, str) else "".join(each["value"] for each in said)}


def _dpo(rows: list[dict[str, Any]]) -> list[tuple[Messages, Messages, float]]:
    read = []
    for row in rows:
        prompt = [_turn(turn) for turn in row["conversations"]]
        read.append(([*prompt, _turn(row["chosen"])], [*prompt, _turn(row["rejected"])], 0.0))
    return read


def _whole(rows: list[dict[str, Any]]) -> list[tuple[Messages, Messages, float]]:
    sides = ("chosen_messages", "rejected_messages")
    both = [[[_turn(turn) for turn in row[side]] for side in sides] for row in rows]
    return [(chosen, rejected, 0.0) for chosen, rejected in both]


def _kto(rows: list[dict[str, Any]]) -> list[tuple[Messages, Messages, float]]:
    said = [[_turn(turn) for turn in row["messages"]] for row in rows]
    others = [said[-1], *said[:-1]]
    return [
        (messages, [*messages[:-1], other[-1]], float(row["label"]))
        for row, messages, other in zip(rows, said, others, strict=True)
    ]


DATA = {
    "dpo_en": Data("dpo_en_demo.json", 300, "pairs", _dpo, {}),
    "dpo_zh": Data("dpo_zh_demo.json", 300, "pairs", _dpo, {}),
    "dpo_v1": Data(
        "v1_dpo_demo.jsonl", 10, "pairs", _whole, {"chosen": "chosen_messages", "rejected": "rejected_messages"}
    ),
    "kto_en": Data("kto_en_demo.json", 300, "singles", _kto, {}),
}


def _rows(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    rows = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
    assert isinstance(rows, list)
    return rows


def _prepare(file: Path, task: Task, model: Path, cache: Path, **spec: Any) -> PreparedData:
    section = {"train": [{"path": str(file), **spec}], "template": "chatml", "max_length": MAX_LENGTH, "processes": 1}
    return prepare(DataSection.model_validate(section), model, task=task, seed=0, cache=cache)


@pytest.mark.parametrize("name", DATA)
def test_real_preference_files_become_the_expected_pairs(
    name: str, shared: Path, tiny_model: Path, tmp_path: Path
) -> None:
    data = DATA[name]
    file = shared / "data" / data.file
    prepared = _prepare(file, data.task, tiny_model, tmp_path, columns=data.columns)
    dataset, expected = TokenDataset.open(prepared.train), _expected(tiny_model, data.read(_rows(file)))
    assert prepared.report.rows_read == data.rows
    assert prepared.report.rows_kept == len(dataset) / 2 == len(expected) / 2 > 0
    assert prepared.report.truncated_rows + prepared.report.rows_dropped > 0, "the length cuts some"
    for row, (ids, labels, value) in enumerate(expected):
        assert dataset.row(row)[0].tolist() == ids
        assert dataset.row(row)[1].tolist() == labels
        assert dataset.values[row // 2] == value


def _expected(model: Path, rows: list[tuple[Messages, Messages, float]]) -> list[tuple[list[int], list[int], float]]:
    """Tokens, labels and value of every row of tokens, from transformers' tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    expected = []
    for *both, value in rows:
        group = []
        for messages in both:
            text = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in messages)
            begin = text.rindex(f"<|im_start|>assistant\n{messages[-1]['content']}<|im_end|>\n") + 22
            encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            # The line break after the last turn's end is not the answer's.
            learnt = [first >= begin and last < len(text) for first, last in encoded["offset_mapping"]]
            ids, learnt = encoded["input_ids"][:MAX_LENGTH], learnt[:MAX_LENGTH]
            labels = [token if yes else IGNORED for token, yes in zip(ids, learnt, strict=True)]
            group.append((ids, labels, value))
        if all(any(token != IGNORED for token in labels) for _, labels, _ in group):
            expected += group
    return expected


@pytest.mark.parametrize(("name", "rows"), [("c4_demo.jsonl", 300), ("wiki_demo.txt", 30)])
def test_real_text_files_become_the_expected_tokens(
    name: str, rows: int, shared: Path, tiny_model: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    file = shared / "data" / name
    lines = file.read_text().splitlines() if file.suffix == ".txt" else [row["text"] for row in _rows(file)]
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    prepared = _prepare(file, "text", tiny_model, tmp_path)
    dataset, report = TokenDataset.open(prepared.train), prepared.report
    assert (report.rows_read, report.rows_kept, report.truncated_tokens) == (rows, rows, 0)
    assert report.split_rows > 0 and report.pieces == len(dataset) - (rows - report.split_rows)
    row = 0
    for text in filter(None, lines):
        tokens: list[int] = []
        while not tokens or tokens[-1] != prepared.eos_id:
            ids, labels = dataset.row(row)
            assert ids.tolist() == labels.tolist() and 2 <= len(ids) <= MAX_LENGTH
            tokens += ids.tolist()
            row += 1
        assert tokens == [*tokenizer(text)["input_ids"], prepared.eos_id]
    assert row == len(dataset)
