"""Pairs and single answers: two conversations a row, which stay together and learn their last turn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import DataError
from ascendtune.data.conversation import Conversation, PreferencePair, UnpairedPreference
from ascendtune.data.shards import NO_ANSWER_LEFT, REFUSED, TOO_LONG, TokenizeResult
from ascendtune.data.spec import Task
from ascendtune.data.store import IGNORED, TokenDataset
from ascendtune.data.template import ChatTemplate
from ascendtune.data.tokenize import groups_of, tokenize
from ascendtune.data.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def template(make_model: Callable[..., Path]) -> ChatTemplate:
    return ChatTemplate.load("chatml", Tokenizer.load(make_model(eos_token="<|im_end|>")))


def chat(question: str, answer: str, earlier: str | None = None) -> Conversation:
    before: list[Any] = [
        {"role": "user", "content": "before"}, {"role": "assistant", "content": earlier, "train": False},
    ]  # fmt: skip
    turns: list[Any] = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return Conversation([*(before if earlier else []), *turns])


def pair(question: str, chosen: str, rejected: str, margin: float = 0) -> PreferencePair:
    return PreferencePair(chat(question, chosen, "earlier"), chat(question, rejected, "earlier"), margin)


def run(
    rows: list[Any], task: Task, template: ChatTemplate, directory: Path, **options: Any
) -> tuple[TokenizeResult, TokenDataset]:
    directory.mkdir(exist_ok=True)
    settings = {"max_length": 2048, "on_long_row": "truncate", "processes": 1, **options}
    return tokenize(groups_of(rows, task), template, directory, **settings), TokenDataset.open(directory)


def text_and_learnt(dataset: TokenDataset, row: int, template: ChatTemplate) -> tuple[str, str]:
    ids, labels = dataset.row(row)
    decode = template.tokenizer.decode
    return decode(ids.tolist()), decode([label for label in labels.tolist() if label != IGNORED])


def said(question: str, answer: str) -> str:
    return (
        "<|im_start|>user\nbefore<|im_end|>\n<|im_start|>assistant\nearlier<|im_end|>\n"
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
    )


def test_a_pair_is_two_rows_that_learn_their_last_answer(template: ChatTemplate, tmp_path: Path) -> None:
    outcome, dataset = run([pair("q", "yes", "no", 1.5), pair("r", "good", "bad")], "pairs", template, tmp_path / "o")
    assert dataset.group_size == 2 and dataset.values.tolist() == [1.5, 0]
    for row, (question, answer) in enumerate([("q", "yes"), ("q", "no"), ("r", "good"), ("r", "bad")]):
        assert text_and_learnt(dataset, row, template) == (said(question, answer), f"{answer}<|im_end|>")
    assert (outcome.rows, outcome.tokens) == (2, int(dataset.lengths.sum()))
    assert outcome.labelled_tokens == int(dataset.label_counts.sum())


def test_a_single_answer_goes_with_the_one_of_the_row_before(template: ChatTemplate, tmp_path: Path) -> None:
    rows = [
        UnpairedPreference(chat("q", "yes", "earlier"), True),
        UnpairedPreference(chat("r", "no", "earlier"), False),
    ]
    rows.append(UnpairedPreference(chat("s", "maybe", "earlier"), True))
    outcome, dataset = run(rows, "singles", template, tmp_path / "o")
    assert dataset.group_size == 2 and dataset.values.tolist() == [1, 0, 1]
    expected = [("q", "yes"), ("q", "maybe"), ("r", "no"), ("r", "yes"), ("s", "maybe"), ("s", "no")]
    for row, (question, answer) in enumerate(expected):
        assert text_and_learnt(dataset, row, template) == (said(question, answer), f"{answer}<|im_end|>")
    assert outcome.rows == 3


def test_one_single_answer_has_no_other_to_go_with() -> None:
    with pytest.raises(DataError) as caught:
        groups_of([UnpairedPreference(chat("q", "a"), True)], "singles")
    assert caught.value.code == "too-few-rows"


@pytest.mark.parametrize("on_long_row", ["drop", "fail"])
def test_a_pair_is_dropped_whole(on_long_row: str, template: ChatTemplate, tmp_path: Path) -> None:
    rows = [pair("q", "yes", "no", 1), pair("q", "yes", "no " * 60, 2), pair("q", "no " * 60, "yes", 3)]
    outcome, dataset = run([*rows, pair("r", "a", "b", 4)], "pairs", template, tmp_path / "o", max_length=60,
                           on_long_row=on_long_row)  # fmt: skip
    assert [(number, reason) for number, reason, _ in outcome.dropped] == [(1, TOO_LONG), (2, TOO_LONG)]
    assert outcome.rows == 2 and len(dataset) == 4 and dataset.values.tolist() == [1, 4]
    assert [text_and_learnt(dataset, row, template)[1] for row in range(4)] == [
        f"{answer}<|im_end|>" for answer in ("yes", "no", "a", "b")
    ]


def test_a_refused_answer_takes_its_pair_along(template: ChatTemplate, tmp_path: Path) -> None:
    source = "{% if messages[-1].content == 'no' %}{{ raise_exception('not this') }}{% endif %}" + template.source
    refusing = ChatTemplate(source, template.tokenizer)
    outcome, dataset = run([pair("q", "yes", "no"), pair("q", "a", "b", 7)], "pairs", refusing, tmp_path / "o")
    assert outcome.dropped == [(0, REFUSED, "not this")]
    assert len(dataset) == 2 and dataset.values.tolist() == [7]


def test_truncation_counts_pairs_and_leaves_no_eos(template: ChatTemplate, tmp_path: Path) -> None:
    rows = [pair("q", "word " * 30, "other " * 40), pair("q", "word " * 30, "b"), pair("q", "a", "b")]
    whole, full = run(rows, "pairs", template, tmp_path / "whole")
    most = int(full.lengths.min()) + 8
    outcome, dataset = run(rows, "pairs", template, tmp_path / "cut", max_length=most)
    assert (outcome.rows, outcome.truncated_rows) == (3, 2)
    assert outcome.truncated_tokens == int((full.lengths - dataset.lengths).sum()) == whole.tokens - outcome.tokens
    eos = template.tokenizer.eos_id
    assert [eos in dataset.row(row)[1] for row in range(6)] == [False, False, False, True, True, True]
    outcome, _ = run([*rows, pair("question " * 50, "a", "b")], "pairs", template, tmp_path / "none", max_length=most)
    assert [(number, reason) for number, reason, _ in outcome.dropped] == [(3, NO_ANSWER_LEFT)]


def test_a_borrowed_answer_is_not_a_reason_to_drop_a_row(template: ChatTemplate, tmp_path: Path) -> None:
    rows = [
        UnpairedPreference(chat("q", "yes"), True),
        UnpairedPreference(chat("q", "long " * 60), False),
        UnpairedPreference(chat("r", "no"), False),
    ]
    outcome, dataset = run(rows, "singles", template, tmp_path / "d", max_length=40, on_long_row="drop")
    assert [(number, reason) for number, reason, _ in outcome.dropped] == [(1, TOO_LONG)]
    assert outcome.truncated_rows == outcome.truncated_tokens == 0
    assert dataset.values.tolist() == [1, 0] and dataset.lengths[3] == 40
    outcome, _ = run(rows, "singles", template, tmp_path / "t", max_length=40)
    assert (outcome.rows, outcome.truncated_rows) == (3, 1)


def test_any_number_of_processes_keeps_pairs_together(
    template: ChatTemplate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ascendtune.data.tokenize._SMALLEST_SHARD", 101)
    rows = [pair(f"question {n}", f"good {n}", f"bad {n}" * (n % 9 + 1), n) for n in range(600)]
    contents, seen = [], list[tuple[int, int]]()
    for processes in (1, 2):
        out = tmp_path / str(processes)
        outcome, dataset = run(
            rows, "pairs", template, out, processes=processes, max_length=60, on_long_row="drop",
            progress=lambda *each: seen.append(each),
        )  # fmt: skip
        contents.append({file.name: file.read_bytes() for file in out.iterdir()})
    assert contents[0] == contents[1] and len(contents[0]) == 6
    assert seen[5] == seen[-1] == (600, 600)
    dropped = {number for number, _, _ in outcome.dropped}
    kept = [number for number in range(600) if number not in dropped]
    assert dropped and dataset.values.tolist() == kept and len(dataset) == 2 * len(kept)
    for group, number in enumerate(kept):
        assert text_and_learnt(dataset, 2 * group, template)[1] == f"good {number}<|im_end|>"
        assert text_and_learnt(dataset, 2 * group + 1, template)[1].startswith(f"bad {number}")
