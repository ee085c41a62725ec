from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from ascendtune.core.errors import MachineError
from ascendtune.data import skeleton
from ascendtune.data.conversation import Conversation
from ascendtune.data.shards import NO_ANSWER_LEFT, NO_ANSWER_SPAN, REFUSED, TOO_LONG, TokenizeResult
from ascendtune.data.spans import Rendered
from ascendtune.data.store import IGNORED, TokenDataset
from ascendtune.data.template import ChatTemplate
from ascendtune.data.tokenize import Groups, tokenize
from ascendtune.data.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def template(make_model: Callable[..., Path]) -> ChatTemplate:
    return ChatTemplate.load("chatml", Tokenizer.load(make_model(eos_token="<|im_end|>")))


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascendtune.data.tokenize._SMALLEST_SHARD", 500)


def chat(question: str, answer: str, **more: Any) -> Conversation:
    return Conversation([{"role": "user", "content": question}, {"role": "assistant", "content": answer, **more}])


ROWS = [chat(f"Question {number}?", " ".join(["cat"] * (number % 17 + 1)) + f" {number}é天") for number in range(1500)]


def run(
    rows: Sequence[Conversation], template: ChatTemplate, directory: Path, **options: Any
) -> tuple[TokenizeResult, TokenDataset]:
    directory.mkdir(exist_ok=True)
    settings = {"max_length": 2048, "on_long_row": "truncate", "processes": 1, **options}
    outcome = tokenize(Groups(rows), template, directory, **settings)
    return outcome, TokenDataset.open(directory)


def expected(row: Conversation, template: ChatTemplate) -> tuple[list[int], list[int]]:
    """All offsets looked at, one by one."""
    rendered = template.render(row)
    encoding = template.tokenizer.backend.encode(rendered.text, add_special_tokens=False)
    learnt = [any(a < end and b > begin for begin, end in rendered.spans) for a, b in encoding.offsets]
    return encoding.ids, [token if yes else IGNORED for token, yes in zip(encoding.ids, learnt, strict=True)]


def test_tokens_and_labels_equal_the_rendered_conversation(template: ChatTemplate, tmp_path: Path) -> None:
    rows = [chat("a", "b"), chat(" a ", "\nb  "), ROWS[16], chat("天气", "很好👩‍👩‍👧")]
    outcome, dataset = run(rows, template, tmp_path / "out")
    for index, row in enumerate(rows):
        ids, labels = expected(row, template)
        assert dataset.row(index)[0].tolist() == ids
        assert dataset.row(index)[1].tolist() == labels
        eos = template.tokenizer.eos_id
        assert [label for label in labels if label != IGNORED][-1] == eos
    assert (outcome.rows, outcome.tokens) == (4, int(dataset.lengths.sum()))
    assert outcome.labelled_tokens == int(dataset.label_counts.sum())
    assert (outcome.longest, outcome.shortest) == (dataset.lengths.max(), dataset.lengths.min())


def test_the_end_is_cut_with_its_eos_and_counted(template: ChatTemplate, tmp_path: Path) -> None:
    row = chat("question", "one two three four five six seven")
    ids, labels = expected(row, template)
    stop = max(index for index, label in enumerate(labels) if label != IGNORED)
    for length in range(2, len(ids) + 2):
        kept = [label for label in labels[1:length] if label != IGNORED]
        outcome, dataset = run([row, chat("a", "b")], template, tmp_path / str(length), max_length=max(length, 12))
        if length < 12 or not kept:
            continue
        assert dataset.row(0)[0].tolist() == ids[:length]
        assert dataset.row(0)[1].tolist() == labels[:length]
        assert (template.tokenizer.eos_id in dataset.row(0)[1]) == (length > stop)
        assert outcome.truncated_tokens == max(0, len(ids) - length)
        assert outcome.truncated_rows == (length < len(ids))


def test_rows_without_a_label_are_dropped(template: ChatTemplate, tmp_path: Path) -> None:
    long = chat("a very long question " * 10, "answer")
    outcome, dataset = run([long, chat("a", "b"), chat("a", "b", train=False)], template, tmp_path / "o", max_length=40)
    assert [(number, reason) for number, reason, _ in outcome.dropped] == [(0, NO_ANSWER_LEFT), (2, NO_ANSWER_SPAN)]
    assert len(dataset) == outcome.rows == 1 and outcome.truncated_rows == 0
    assert dataset.row(0)[0].tolist() == expected(chat("a", "b"), template)[0]


@pytest.mark.parametrize("choice", ["drop", "fail"])
def test_long_rows_can_be_left_out(choice: str, template: ChatTemplate, tmp_path: Path) -> None:
    rows = [chat("a", "b"), chat("a", "b " * 50)]
    length = len(expected(rows[0], template)[0])
    outcome, dataset = run(rows, template, tmp_path / "o", max_length=length, on_long_row=choice)
    assert [(number, reason) for number, reason, _ in outcome.dropped] == [(1, TOO_LONG)]
    assert f"{len(expected(rows[1], template)[0]):,} tokens" in outcome.dropped[0][2]
    assert dataset.lengths.tolist() == [length]


def test_a_refused_row_keeps_its_reason(template: ChatTemplate, tmp_path: Path) -> None:
    source = "{% if messages[0].content == 'no' %}{{ raise_exception('not this') }}{% endif %}" + template.source
    refusing = ChatTemplate(source, template.tokenizer)
    outcome, dataset = run([chat("a", "b"), chat("no", "b"), chat("c", "d")], refusing, tmp_path / "o")
    assert outcome.dropped == [(1, REFUSED, "not this")] and len(dataset) == 2


def test_text_beside_calls_that_the_template_leaves_out_is_counted(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    written = "{{ m.tool_calls | tojson if m.tool_calls else m.content }}"
    source = f"{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{written}<|im_end|>\n{{% endfor %}}"
    template = ChatTemplate.load("auto", Tokenizer.load(make_model(chat_template=source)))
    calls = [{"type": "function", "function": {"name": "look", "arguments": {}}}]
    rows = [chat("q", "a"), chat("q", "I look.", tool_calls=calls), chat("q", "", tool_calls=calls)]
    outcome, _ = run(rows, template, tmp_path)
    assert (outcome.rows, outcome.rows_left_out_text) == (3, 1)


@pytest.mark.parametrize(("answer", "shares"), [("\nb", 1), (" b", 0), ("b\n\nc", 0)])
def test_rows_whose_answer_shares_a_token_with_the_prompt_are_counted(
    answer: str, shares: int, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    template = ChatTemplate.load("chatml", Tokenizer.load(make_model(eos_token="<|im_end|>"), ["\n\n"]))
    outcome, dataset = run([chat("a", answer)], template, tmp_path)
    assert outcome.rows_joined_to_prompt == shares
    prompt = template.tokenizer.encode(template.render_prompt([{"role": "user", "content": "a"}]))
    assert (dataset.row(0)[0][: len(prompt)].tolist() == prompt) is not bool(shares)


@pytest.mark.long
def test_any_number_of_processes_gives_the_same_bytes(template: ChatTemplate, tmp_path: Path) -> None:
    rows = [*ROWS[:800], chat("a", "b", train=False), *ROWS[800:]]
    outcomes, contents = [], []
    for processes in (1, 2, 3):
        out = tmp_path / str(processes)
        outcome, _ = run(rows, template, out, processes=processes, max_length=30)
        outcomes.append(outcome)
        contents.append({file.name: file.read_bytes() for file in out.iterdir()})
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert contents[0] == contents[1] == contents[2] and len(contents[0]) == 4
    assert outcomes[0].rows + len(outcomes[0].dropped) == len(rows)


@pytest.mark.parametrize("processes", [1, 2])
def test_progress_reaches_the_end(processes: int, template: ChatTemplate, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    run(ROWS, template, tmp_path / "o", processes=processes, progress=lambda *each: seen.append(each))
    assert seen == [(500, 1500), (1000, 1500), (1500, 1500)]


class Deadly(Sequence[Conversation]):
    """Kills the process that reads row 1200, unless it is the one that made it."""

    def __init__(self) -> None:
        self.home = os.getpid()

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: Any) -> Any:
        if index == 1200 and os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL)
        return ROWS[index]

    def __iter__(self) -> Iterator[Conversation]:
        return iter(ROWS)


def test_a_killed_worker_is_an_error_and_no_hang(template: ChatTemplate, tmp_path: Path) -> None:
    begun, before = time.monotonic(), psutil.Process().children()
    with pytest.raises(MachineError) as caught:
        run(Deadly(), template, tmp_path / "o", processes=2)
    assert caught.value.code == "data-process-died" and "signal 9" in caught.value.what
    assert "data.processes" in caught.value.remedy
    assert time.monotonic() - begun < 30
    assert psutil.Process().children() == before


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("wrong_text", ["Question 3?", "Question 1000?"])
def test_a_wrong_fast_path_is_found_and_undone(
    wrong_text: str, processes: int, template: ChatTemplate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, _ = run(ROWS, template, tmp_path / "right")
    fill = skeleton._Skeleton.fill

    def wrong(self: Any, contents: list[str]) -> Rendered | None:
        made = fill(self, contents)
        if made is None or contents[0] != wrong_text:
            return made
        return Rendered(made.text, [(begin + 1, end) for begin, end in made.spans])

    monkeypatch.setattr(skeleton._Skeleton, "fill", wrong)
    outcome, dataset = run(ROWS, template, tmp_path / "wrong", processes=processes)
    assert outcome == right
    again = TokenDataset.open(tmp_path / "right")
    assert all(np.array_equal(dataset.row(index)[1], again.row(index)[1]) for index in range(len(again)))
