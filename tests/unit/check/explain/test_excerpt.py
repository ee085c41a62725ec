"""The lines of large logs that a question has room for."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from ascendtune.check.explain.answer.excerpt import excerpt
from ascendtune.check.explain.explain import explain

_FAILURE = "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB"


def _excerpt(names: list[str], most_characters: int) -> str:
    found = explain(names)
    failures = [event for event in (found.verdict.first, *found.verdict.dismissed) if event is not None]
    return excerpt(found.scans, failures, most_characters)


def test_small_log_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"one\n\ntwo\n{_FAILURE}\nlast")
    assert _excerpt([str(log)], 10_000) == f"--- {log} (5 lines)\n1: one\n2: \n3: two\n4: {_FAILURE}\n5: last"


@pytest.mark.parametrize("at", [1, 60, 25_000, 49_990, 50_000])
def test_large_log_is_its_failure_its_beginning_and_its_end(tmp_path: Path, at: int) -> None:
    lines = [f"word {'abcdefghij'[number % 10]}{'klmno'[number % 5 - 1]} {number}" for number in range(1, 50_001)]
    lines[at - 1] = _FAILURE
    log = tmp_path / "a.log"
    log.write_text("\n".join(lines) + "\n")
    shown = _excerpt([str(log)], 6_000)
    assert len(shown) <= 6_200
    numbered = dict(re.findall(r"^(\d+): (.*)$", shown, re.MULTILINE))
    assert all(lines[int(number) - 1] == line for number, line in numbered.items())
    assert {str(at), "1", "50000"} <= set(numbered)
    if at == 25_000:
        assert {str(at - 40), str(at + 20)} <= set(numbered)
    # Each line is shown or counted.
    left_out = sum(int(count) for count in re.findall(r"^\((\d+) lines left out\)$", shown, re.MULTILINE))
    assert len(numbered) + left_out == 50_000


def test_lines_that_differ_in_numbers_only_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"step {step} loss 2.{step}\n" for step in range(30)) + _FAILURE)
    assert f"1: step 0 loss 2.0\n(29 more such lines)\n31: {_FAILURE}" in _excerpt([str(log)], 10_000)


def test_logs_of_many_ranks_all_have_a_part_and_the_failed_one_the_largest(tmp_path: Path) -> None:
    names = []
    for rank in range(40):
        log = tmp_path / f"rank_{rank}.log"
        log.write_text("\n".join(f"{word} of rank {rank}" for word in ["loading", "waiting"] * 500))
        names.append(str(log))
    with (tmp_path / "rank_17.log").open("a") as file:
        file.write(f"\n{_FAILURE}\n")
    shown = _excerpt(names, 24_000)
    assert len(shown) <= 26_000
    assert shown.startswith(f"--- {tmp_path / 'rank_17.log'}") and _FAILURE in shown
    assert shown.count("\n--- ") == 31 and shown.endswith("(8 more logs are left out)")
    assert shown.count("1000: waiting of rank") >= 31


def test_long_line_keeps_both_ends_and_no_control_characters(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"begin {'x' * 100_000} end\n\x1b[31m{_FAILURE}\x1b[0m\n")
    shown = _excerpt([str(log)], 5_000)
    assert "begin xxx" in shown and "xxx end" in shown and len(shown) < 1_000 and "\x1b" not in shown


@pytest.mark.parametrize("at", [1, 20_000, 50_000])
def test_stdin_has_its_failure_its_beginning_and_its_end(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    lines = [f"word {'abcdefghij'[number % 10]}\f {number}" for number in range(1, 50_001)]
    lines[at - 1] = _FAILURE
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    found = explain(["-"])
    shown = excerpt(found.scans, [event for scan in found.scans for event in scan.events], 6_000)
    numbered = dict(re.findall(r"^(\d+): (.*)$", shown, re.MULTILINE))
    assert all(lines[int(number) - 1].replace("\f", "\\u000c") == line for number, line in numbered.items())
    assert {str(at), "1", "15", "49961", "50000"} <= set(numbered)


def test_stdin_that_is_one_long_line_has_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x" * 300_000 + b" the end")))
    assert excerpt(explain(["-"]).scans, [], 6_000).endswith(" the end")


@pytest.mark.parametrize("before", range(200, 260, 7))
def test_secret_is_masked_before_a_long_line_is_cut(tmp_path: Path, before: int) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"{'x' * before} api_key={'k3y' * 200} end\n{_FAILURE}\n")
    assert f"{'x' * before} api_key=*** end" in _excerpt([str(log)], 5_000)


def test_secret_that_a_terminal_broke_is_masked_whole(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    words = "".join(f"{'word ' * 15}{end}\n" for end in ("ab", "cde", "fghij"))
    log.write_text(f"{words}{'w ' * 20}export SERVER_API_KEY={'k3y' * 6}\n{'k3y' * 4} and more\n{_FAILURE}\n")
    shown = _excerpt([str(log)], 5_000)
    assert "SERVER_API_KEY=*** and more\n4: \n5: \n6: " in shown and "k3y" not in shown
