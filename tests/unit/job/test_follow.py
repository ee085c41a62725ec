from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ascendtune.job import follow
from ascendtune.job.follow import LogLine, logs_of


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for name in ("job.log", "launcher.log", "rank_10.log", "rank_2.log", "rank_x.log"):
        (tmp_path / name).write_text("".join(f"{name} {number}\n" for number in range(3)))
    return tmp_path


def _rounds(*actions: object) -> Iterator[bool]:
    """`is_over` asked again and again: before each answer something happens."""
    for action in actions:
        if callable(action):
            action()
        yield False
    yield True


def _follow(directory: Path, *actions: object, **how: object) -> list[str]:
    rounds = _rounds(*actions)
    return [line.text for line in follow.follow(directory, lambda: next(rounds), **{"began": {}, **how})]  # type: ignore[arg-type]


def test_the_logs_of_a_job_are_its_own_and_its_ranks_in_their_order(logs: Path) -> None:
    assert [(path.name, rank) for path, rank in logs_of(logs).items()] == [
        ("job.log", None),
        ("rank_2.log", 2),
        ("rank_10.log", 10),
    ]
    assert list(logs_of(logs, rank=10).values()) == [10] and list(logs_of(logs, rank=0)) == [logs / "job.log"]
    assert logs_of(logs / "nothing") == {}


def test_only_this_jobs_part_is_read_and_of_it_the_last_lines(logs: Path) -> None:
    began = {"job.log": len("job.log 0\n")}
    assert _follow(logs, began=began, rank=None)[:3] == ["job.log 1", "job.log 2", "rank_2.log 0"]
    assert _follow(logs, last=1) == ["job.log 2", "rank_2.log 2", "rank_10.log 2"]
    assert _follow(logs, began={"job.log": (logs / "job.log").stat().st_size}, last=2, rank=2) == [
        "rank_2.log 1",
        "rank_2.log 2",
    ]


def test_follow_shows_all_lines_until_the_job_ends(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_LOOK_EVERY_SECONDS", 0)

    def append(name: str, text: str) -> None:
        with (logs / name).open("a") as file:
            file.write(text)

    lines = _follow(
        logs,
        lambda: None,
        lambda: append("rank_2.log", "more\nha"),
        lambda: append("rank_0.log", "late comer\n"),
        lambda: append("rank_2.log", "lf\nno newline"),
        last=0,
    )
    assert lines == ["more", "late comer", "half", "no newline"]


def test_each_line_tells_its_rank(logs: Path) -> None:
    lines = list(follow.follow(logs, lambda: True, began={}, last=1))
    assert lines == [LogLine(None, "job.log 2"), LogLine(2, "rank_2.log 2"), LogLine(10, "rank_10.log 2")]


@pytest.mark.parametrize(("every_seconds", "shown"), [(0.0, ["1/3", "2/3", "3/3"]), (1e6, ["3/3"])])
def test_a_progress_bar_is_shown_now_and_then_and_as_it_ended(
    every_seconds: float, shown: list[str], logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_LOOK_EVERY_SECONDS", 0)
    monkeypatch.setattr(follow, "_BAR_EVERY_SECONDS", every_seconds)
    states = iter(range(1, 4))

    def go_on() -> None:
        with (logs / "rank_2.log").open("a") as file:
            file.write(f"\r{next(states)}/3")

    assert _follow(logs, *[go_on] * 3, lambda: None, last=0, rank=2) == shown
