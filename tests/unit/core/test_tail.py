from __future__ import annotations

from pathlib import Path

from ascendtune.core.tail import Tail


def test_complete_lines_from_where_the_file_ended(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n")
    tail = Tail(path)
    assert tail.lines() == []
    with path.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert tail.lines() == ["one"]
        file.write("o\n")
        file.flush()
        assert tail.lines() == ["two"]


def test_a_file_that_comes_later_or_is_cut_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.lines() == []
    path.write_text("a long first line\n")
    assert tail.lines() == ["a long first line"]
    path.write_text("short\n")
    assert tail.lines() == ["short"]
