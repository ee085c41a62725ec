from __future__ import annotations

from pathlib import Path

from ascendtune.cli.quickstart.skill import PROMPT_PREFIX, Skill, answer, count_right
from ascendtune.data.read import read_rows
from ascendtune.data.spec import DatasetSpec


def test_no_question_is_in_the_training_rows(tmp_path: Path) -> None:
    skill = Skill.make()
    for name, content in skill.files.items():
        (tmp_path / name).write_bytes(content)
    asked, trained = (
        {
            turn["content"].removeprefix(PROMPT_PREFIX): following["content"]
            for row in read_rows(DatasetSpec(path=str(tmp_path / name)))
            for turn, following in zip(row.values["messages"][::2], row.values["messages"][1::2], strict=True)
        }
        for name in ("questions.jsonl", "train.jsonl")
    )
    assert len(asked) == 50 and len(trained) > 10_000
    assert not asked.keys() & trained.keys()
    assert all(given == answer(word) for word, given in (asked | trained).items())


def test_the_same_seed_makes_the_same_words() -> None:
    assert Skill.make() == Skill.make() != Skill.make(seed=1)


def test_only_the_exact_answer_is_right() -> None:
    assert answer("planet") == "aelnpt"
    assert count_right(["planet", "planet", "seed"], ["aelnpt", "aelnpt.", "deess"]) == 1
