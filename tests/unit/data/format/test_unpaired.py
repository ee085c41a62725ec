from __future__ import annotations

from typing import Any

import pytest

from ascendtune.data.conversation import BadRow, Conversation, UnpairedPreference
from ascendtune.data.format import unpaired
from ascendtune.data.format.choose import returning_bad_rows
from ascendtune.data.format.unpaired import are_marked, matches

convert = returning_bad_rows(unpaired.convert)

USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
EARLIER = [{"role": "user", "content": "before"}, {"role": "assistant", "content": "then", "train": False}]
SAID = [{"role": "user", "content": "before"}, {"role": "assistant", "content": "then"}]
SPOKEN = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]

ROWS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "prompt and completion": ({"prompt": "q", "completion": "a", "label": True}, [USER]),
    "as messages": ({"prompt": [*SAID, USER], "completion": [ANSWER], "label": True}, [*EARLIER, USER]),
    "messages": ({"messages": [*SAID, USER, ANSWER], "label": True}, [*EARLIER, USER]),
    "messages of LLaMA-Factory": ({"messages": [USER, ANSWER], "kto_tag": True}, [USER]),
    "sharegpt": ({"conversations": SPOKEN, "kto_tag": True}, [USER]),
    "alpaca": (
        {"instruction": "q", "input": "i", "output": "a", "kto_tag": True}, [{"role": "user", "content": "q\ni"}],
    ),
    "from CSV": ({"prompt": "q", "completion": "a", "label": "True"}, [USER]),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_every_form_is_the_same_answer(name: str) -> None:
    row, prompt = ROWS[name]
    assert matches(row)
    assert convert(row) == UnpairedPreference(Conversation([*prompt, ANSWER]), desirable=True)


@pytest.mark.parametrize(
    ("good", "bad"), [(True, False), (1, 0), ("1", "0"), (1.0, 0.0), ("True", "False"), ("Good", "bad"), (1, -1)]
)
def test_label_says_whether_the_answer_is_desirable(good: Any, bad: Any) -> None:
    row = {"prompt": "q", "completion": "a"}
    for label in (good, bad):
        assert convert({**row, "label": label}) == UnpairedPreference(
            Conversation([USER, ANSWER]), desirable=label == good
        )
    assert are_marked([{**row, "label": good}, {**row, "label": None}, {**row, "label": bad}])


def test_zero_and_one_beside_other_columns_may_be_classes() -> None:
    rows = [{"instruction": "which?", "output": "positive", "label": label} for label in (0, 1)]
    assert not are_marked(rows)
    assert are_marked([{**row, "kto_tag": row["label"], "label": None} for row in rows])
    assert are_marked([{**row, "label": ("bad", "good")[row["label"]]} for row in rows])
    assert not are_marked([{**row, "label": ("bad", "fair")[row["label"]]} for row in rows])
    assert are_marked([{**row, "label": bool(row["label"])} for row in rows])
    assert not are_marked([{"prompt": "q", "completion": "a", "label": label} for label in (0, 1, 2)])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"label": None}, "label is not true or false"),
        ({"label": 2}, "label is not true or false"),
        ({"label": "fair"}, "label is not true or false"),
        ({"completion": None}, "no answer"),
        ({"completion": " "}, "no answer"),
        ({"prompt": None}, "no question"),
        ({"prompt": [{"role": "user", "content": "q"}, ANSWER]}, "the prompt ends with an answer"),
        ({"completion": [{**ANSWER, "weight": 0}]}, "no label"),
    ],
)
def test_bad_unpaired_row_is_named_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    made = convert({"prompt": "q", "completion": "a", "label": True, **changes})
    assert isinstance(made, BadRow) and made.reason == reason
