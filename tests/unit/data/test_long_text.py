"""Long texts against tokenising them at once, which is what the `tokenizers` library does with them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascendtune.data import long_text, tokenize
from ascendtune.data.conversation import Conversation, Message, Text
from ascendtune.data.long_text import ChunkedTokenizer, IndivisibleText, characters_for, first_tokens
from ascendtune.data.shards import TOO_LONG, TokenizeResult
from ascendtune.data.store import TokenDataset
from ascendtune.data.template import ChatTemplate
from ascendtune.data.tokenize import Groups
from ascendtune.data.tokenize_texts import tokenize_texts
from ascendtune.data.tokenizer import Tokenizer

_DRAWN = random.Random(7)
_LETTERS = "The capital of France is Paris, and cats; 1234567 天气很好。Größe naïve \n\n\t  </s> <|im_end|> é 👩‍👩‍👧 "


def _drawn(length: int, alphabet: str = _LETTERS) -> str:
    words = alphabet.split(" ")
    text = ""
    while len(text) < length:
        text += _DRAWN.choice(words) + _DRAWN.choice([" ", " ", "", "  ", "\n"])
    return text[:length]


TEXTS = {
    "words": _drawn(40_000),
    "one letter": "a" * 40_000,
    "one word of two letters": "ab" * 20_000,
    "letters in any order": "".join(_DRAWN.choices("thecatisanofdr", k=40_000)),
    "Chinese without spaces": "".join(_DRAWN.choices("天气很好今是星期五。", k=40_000)),
    "digits": "".join(_DRAWN.choices("0123456789", k=40_000)),
    "spaces": "x" + " " * 39_999,
    "spaces and lines": "".join(_DRAWN.choices(" \n\t", k=40_000)),
    "emoji": "👩‍👩‍👧" * 8_000,
    "combining characters": "e" + "\u0301\u0323" * 500 + _drawn(38_000),
    "special tokens": "".join(_DRAWN.choices(["</s>", "<|im_end|>", "a b", " ", "天"], k=20_000)),
}


@pytest.mark.long
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_first_tokens_are_those_of_the_whole_text(any_tokenizer: Tokenizer, text: str) -> None:
    backend = any_tokenizer.backend
    whole = backend.encode(text, add_special_tokens=False)
    for tokens in (2, 100, 1000):
        encoding, seen = first_tokens(backend, text, tokens)
        assert encoding.ids[:tokens] == whole.ids[:tokens]
        assert encoding.offsets[:tokens] == whole.offsets[:tokens]
        assert len(encoding) > tokens or (seen == len(text) and encoding.ids == whole.ids)


def test_only_the_beginning_of_a_long_text_is_tokenised(any_tokenizer: Tokenizer) -> None:
    encoding, seen = first_tokens(any_tokenizer.backend, "The cat was happy. " * 100_000, 1000)
    assert len(encoding) > 1000
    assert seen < 40_000


@pytest.mark.long
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_parts_are_tokenised_as_the_whole_text(
    any_tokenizer: Tokenizer, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_text, "_MARGIN", 200)
    monkeypatch.setattr(long_text, "_OVERLAP", 800)
    monkeypatch.setattr(long_text, "_CHARACTERS_PER_PART", 3000)
    ids = ChunkedTokenizer(any_tokenizer).encode(text)
    assert ids.tolist() == any_tokenizer.backend.encode(text, add_special_tokens=False).ids


def test_a_text_that_begins_nowhere_anew_is_refused(
    make_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_text, "_CHARACTERS_PER_PART", 3000)
    monkeypatch.setattr(long_text, "_LONGEST_PART", 6000)
    monkeypatch.setattr(long_text._Part, "starts", lambda *_: [])
    with pytest.raises(IndivisibleText):
        ChunkedTokenizer(Tokenizer.load(make_model())).encode("cat " * 10_000)


def _run(
    rows: list[Conversation], template: ChatTemplate, directory: Path, **options: Any
) -> tuple[TokenizeResult, Any]:
    directory.mkdir()
    settings = {"max_length": 64, "on_long_row": "truncate", "processes": 1, **options}
    return tokenize.tokenize(Groups(rows), template, directory, **settings), directory


def _chat(*texts: str) -> Conversation:
    roles = ("user", "assistant")
    return Conversation([Message(role=roles[at % 2], content=text) for at, text in enumerate(texts)])


LONG = {
    "a long question": [_chat("cat " * 30_000, "yes"), _chat("a", "b")],
    "a long answer": [_chat("Why?", "cat " * 30_000)],
    "an empty beginning": [_chat(" " * 70_000 + "a", "b c")],
    "many turns": [_chat(*(f"{'cat ' * 20}{number}" for number in range(2000)))],
    "many short turns": [_chat(*(str(number) for number in range(6000)))],
}


@pytest.mark.long
@pytest.mark.long
@pytest.mark.parametrize("rows", LONG.values(), ids=LONG)
@pytest.mark.parametrize("kind", ["byte_level", "metaspace", "prepending"])
def test_a_long_row_is_truncated_as_if_all_of_it_were_tokenised(
    rows: list[Conversation], kind: str, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    template = ChatTemplate.load("chatml", Tokenizer.load(make_model(kind, eos_token="<|im_end|>")))
    outcome, directory = _run([*rows, _chat("a", "b")], template, tmp_path / "rows", max_length=512)
    kept = TokenDataset.open(directory)
    at = 0
    dropped = {number for number, _, _ in outcome.dropped}
    for number, row in enumerate(rows):
        # Spans by hand: what stands between the assistant's header and its end mark, in chatml.
        text = "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in row.messages)
        whole = template.tokenizer.backend.encode(text, add_special_tokens=False)
        # Only the tokens that are kept have labels: whole.offsets is a list of all, made anew at each access.
        begins, ends = np.array(whole.offsets[:512]).T
        learnt = np.zeros(len(begins), bool)
        begin = 0
        for each in row.messages:
            begin += len(f"<|im_start|>{each['role']}\n")
            end = begin + len(each["content"]) + len("<|im_end|>")
            if each["role"] == "assistant":
                learnt |= (begins < end) & (ends > begin)
            begin = end + 1
            if begin > 20_000:
                break
        expected = whole.ids[:512]
        labels = [token if yes else -100 for token, yes in zip(expected, learnt, strict=True)]
        if all(label == -100 for label in labels[1:]):
            assert number in dropped
            continue
        assert number not in dropped
        assert kept.row(at)[0].tolist() == expected
        assert kept.row(at)[1].tolist() == labels
        at += 1
    assert len(kept) == at + 1


def test_uncounted_characters_are_reported(make_model: Callable[..., Path], tmp_path: Path) -> None:
    template = ChatTemplate.load("chatml", Tokenizer.load(make_model(eos_token="<|im_end|>")))
    long, short = _chat("Why?", "cat " * 30_000), _chat("Why?", "cat " * 100)
    outcome, _ = _run([long, short], template, tmp_path / "truncate")
    whole = [len(template.tokenizer.encode(template.render(row).text)) for row in (long, short)]
    assert (outcome.truncated_rows, outcome.uncounted_rows) == (2, 1)
    assert whole[1] - 64 < outcome.truncated_tokens < whole[0] + whole[1] - 128
    assert 100_000 < outcome.uncounted_characters < 120_000
    outcome, _ = _run([short], template, tmp_path / "short")
    assert (outcome.truncated_tokens, outcome.longest, outcome.uncounted_rows) == (whole[1] - 64, whole[1], 0)
    outcome, _ = _run([long, short], template, tmp_path / "drop", on_long_row="drop")
    (first, reason, detail), second = outcome.dropped
    assert (first, reason) == (0, TOO_LONG)
    assert detail.startswith("over ")
    assert detail.endswith("characters")
    assert second == (1, TOO_LONG, f"{whole[1]:,} tokens")


@pytest.mark.long
@pytest.mark.long
def test_a_text_for_pretraining_is_split_as_if_it_were_tokenised_at_once(
    any_tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ascendtune.data.tokenize_texts._CHARACTERS_PER_BATCH", 30_000)
    monkeypatch.setattr(long_text, "_CHARACTERS_PER_PART", 20_000)
    texts = [Text("short"), Text(TEXTS["words"]), Text("short too"), Text(TEXTS["Chinese without spaces"])]
    outcome = tokenize_texts(texts, any_tokenizer, tmp_path, max_length=300, on_long_row="truncate", processes=1)
    dataset = TokenDataset.open(tmp_path)
    found = [token for index in range(len(dataset)) for token in dataset.row(index)[0].tolist()]
    eos = any_tokenizer.eos_id
    expected = []
    for each in texts:
        ids = any_tokenizer.backend.encode(each.text, add_special_tokens=False).ids
        expected += [*any_tokenizer.text_prefix, *ids, eos]
    assert found == expected
    assert outcome.uncounted_rows == 0


def test_a_text_that_is_left_out_is_not_tokenised_whole(
    make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChunkedTokenizer, "encode", lambda *_: pytest.fail("it was tokenised"))
    texts = [Text("short"), Text("cat " * 300_000)]
    outcome = tokenize_texts(
        texts, Tokenizer.load(make_model()), tmp_path, max_length=300, on_long_row="drop", processes=1
    )
    assert [(number, reason) for number, reason, _ in outcome.dropped] == [(1, TOO_LONG)]
    assert outcome.uncounted_rows == 1


def test_texts_that_are_tokenised_whole_have_room_for_what_is_kept() -> None:
    assert characters_for(1024) == 65_536
    assert characters_for(1_000_000) == 16_000_000
