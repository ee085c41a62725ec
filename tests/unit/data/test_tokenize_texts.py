"""Texts for pretraining: every token is trained on, long texts become several rows, nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors

from ascendtune.data.conversation import Text
from ascendtune.data.shards import NOTHING_TO_LEARN, TOO_LONG, TokenizeResult
from ascendtune.data.store import TokenDataset
from ascendtune.data.tokenize_texts import tokenize_texts
from ascendtune.data.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(make_model: Callable[..., Path]) -> Tokenizer:
    return Tokenizer.load(make_model(eos_token="<|endoftext|>"))


def run(texts: list[str], tokenizer: Tokenizer, directory: Path, **options: Any) -> tuple[TokenizeResult, TokenDataset]:
    directory.mkdir(exist_ok=True)
    given = {"max_length": 64, "on_long_row": "truncate", "processes": 1, **options}
    return tokenize_texts([*map(Text, texts)], tokenizer, directory, **given), TokenDataset.open(directory)


def rows_of(dataset: TokenDataset) -> list[list[int]]:
    return [dataset.row(index)[0].tolist() for index in range(len(dataset))]


def test_a_text_is_its_tokens_and_eos_and_all_is_learnt(tokenizer: Tokenizer, tmp_path: Path) -> None:
    outcome, dataset = run([" The cat.\n", "天气很好"], tokenizer, tmp_path / "o")
    assert rows_of(dataset) == [[*tokenizer.encode(text), tokenizer.eos_id] for text in (" The cat.\n", "天气很好")]
    for index in range(2):
        ids, labels = dataset.row(index)
        assert ids.tolist() == labels.tolist()
    assert dataset.group_size == 1
    assert (outcome.rows, outcome.split_rows, outcome.pieces) == (2, 0, 0)
    assert (outcome.tokens, outcome.labelled_tokens) == (dataset.lengths.sum(), dataset.lengths.sum() - 2)


def test_a_long_text_is_split_and_only_its_end_has_eos(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = "cat happy story " * 30
    ids = [*tokenizer.encode(text), tokenizer.eos_id]
    outcome, dataset = run(["a", text], tokenizer, tmp_path / "o", max_length=10)
    assert rows_of(dataset)[1:] == [ids[at : at + 10] for at in range(0, len(ids), 10)]
    assert (outcome.rows, outcome.split_rows, outcome.pieces) == (2, 1, -(-len(ids) // 10))
    assert (outcome.truncated_rows, outcome.truncated_tokens, outcome.longest) == (0, 0, len(ids))


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=6), most=st.integers(3, 20))
@settings(max_examples=40, deadline=None)
def test_split_rows_keep_every_token_and_have_labels(
    lengths: list[int], most: int, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    texts = [" cat" * length for length in lengths]
    outcome, dataset = run(texts, tokenizer, tmp_path_factory.mktemp("split"), max_length=most)
    together = [token for row in rows_of(dataset) for token in row]
    assert together == [token for text in texts for token in [*tokenizer.encode(text), tokenizer.eos_id]]
    assert dataset.lengths.max() <= most and dataset.label_counts.min() >= 1
    assert outcome.rows == len(texts)


def test_rows_of_two_leave_no_token_alone(tokenizer: Tokenizer, tmp_path: Path) -> None:
    # With EOS two and three tokens.
    outcome, dataset = run([" cat", " cat cat"], tokenizer, tmp_path / "o", max_length=2)
    assert dataset.lengths.tolist() == [2, 2] and dataset.label_counts.tolist() == [1, 1]
    assert (outcome.rows, outcome.tokens, outcome.truncated_rows, outcome.truncated_tokens) == (2, 4, 1, 1)


def test_texts_of_one_token_are_left_out_and_listed(tokenizer: Tokenizer, tmp_path: Path) -> None:
    # With EOS alone.
    outcome, dataset = run(["", " cat"], tokenizer, tmp_path / "o")
    assert outcome.dropped == [(0, NOTHING_TO_LEARN, "1 tokens")]
    assert outcome.rows == len(dataset) == 1


@pytest.mark.parametrize("choice", ["drop", "fail"])
def test_long_texts_can_be_left_out(choice: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    outcome, dataset = run(["cat", "cat " * 90], tokenizer, tmp_path / "o", on_long_row=choice)
    assert [(number, reason) for number, reason, _ in outcome.dropped] == [(1, TOO_LONG)]
    assert outcome.rows == len(dataset) == 1


def test_any_number_of_processes_gives_the_same_bytes(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ascendtune.data.tokenize_texts._CHARACTERS_PER_SHARD", 1000)
    monkeypatch.setattr("ascendtune.data.tokenize_texts._CHARACTERS_PER_BATCH", 300)
    texts = [f"text {number} " * (number % 40 + 1) for number in range(60)]
    seen: list[tuple[int, int]] = []
    contents = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        outcome, dataset = run(texts, tokenizer, out, processes=processes, progress=lambda *each: seen.append(each))
        contents.append({file.name: file.read_bytes() for file in out.iterdir()})
    assert contents[0] == contents[1] and len(contents[0]) > 5
    assert outcome.rows == 60 and seen[-1] == (60, 60)
    together = [token for row in rows_of(dataset) for token in row]
    assert together == [token for text in texts for token in [*tokenizer.encode(text), tokenizer.eos_id]]


@pytest.mark.parametrize("config", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
@pytest.mark.parametrize("adds_bos", [False, True], ids=["plain", "tokenizer.json adds BOS"])
@pytest.mark.parametrize("kind", ["byte_level", "metaspace"])
def test_bos_is_where_transformers_puts_it(
    kind: str, adds_bos: bool, config: dict[str, bool], make_model: Callable[..., Path], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    directory = make_model(kind, **config)
    if adds_bos:
        backend = Tokenizer.load(directory).backend
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
        backend.save(str(directory / "tokenizer.json"))
    tokenizer = Tokenizer.load(directory)
    theirs = AutoTokenizer.from_pretrained(directory)("The cat.")["input_ids"]
    _, dataset = run(["The cat."], tokenizer, tmp_path / "o")
    assert (theirs[0] == tokenizer.id_of(tokenizer.named_tokens.get("bos_token"))) == adds_bos
    assert rows_of(dataset) == [[*theirs, tokenizer.eos_id]]
