from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from ascendtune.core.tail import Tail


def test_complete_lines_from_where_the_file_ended(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n")
    tail = Tail(path)
    assert list(tail.lines()) == []
    with path.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert list(tail.lines()) == ["one"]
        file.write("o\n")
        file.flush()
        assert list(tail.lines()) == ["two"]


def test_a_file_that_comes_later_or_is_cut_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert list(tail.lines()) == []
    path.write_text("a long first line\n")
    assert list(tail.lines()) == ["a long first line"]
    path.write_text("short\n")
    assert list(tail.lines()) == ["short"]


def test_lines_in_the_encoding_of_the_locale_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes("步 1\n".encode() + "损失 × 1.0\n".encode("gb18030") + b"\xff\n")
    monkeypatch.setattr("locale.getpreferredencoding", lambda do_setlocale=True: "GB18030")
    assert list(Tail(path, 0).lines()) == ["步 1", "损失 × 1.0", "\ufffd"]
    monkeypatch.setattr("locale.getpreferredencoding", lambda do_setlocale=True: "UTF-8")
    assert list(Tail(path, 0).lines())[::2] == ["步 1", "\ufffd"]


def test_a_progress_bar_is_kept_as_its_last_state_however_long_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("begin")
    tail = Tail(path, 0)
    assert list(tail.lines()) == [] and tail.bar() == ""
    with path.open("a", newline="") as file:
        for number in range(2000):
            file.write(f"\r{number:4d}/2000")
            file.flush()
            assert list(tail.lines()) == [] and tail.bar() == f"{number:4d}/2000"
        assert len(tail._rest) < 20
        file.write("\r")
        file.flush()
        assert list(tail.lines()) == [] and tail.bar() == "1999/2000"
        file.write("\r\ndone\nha")
        file.flush()
        assert list(tail.lines()) == ["1999/2000", "done"] and tail.bar() == "" and tail.rest() == ["ha"]


def test_line_without_an_end_is_split_and_not_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(200 << 20)  # NULs, which take no space on the disk
    tail, longest, total = Tail(path, 0), 0, 0
    tracemalloc.start()
    for line in tail.lines():
        longest, total = max(longest, len(line)), total + len(line)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total + sum(map(len, tail.rest())) == 200 << 20
    assert longest <= 2 << 20 and peak < 32 << 20


def test_lines_that_were_not_taken_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"{number}\n" for number in range(500_000)))
    tail = Tail(path, 0)
    assert [next(tail.lines()) for _ in range(3)] == ["0", "1", "2"]
    assert sum(1 for _ in tail.lines()) == 500_000 - 3
