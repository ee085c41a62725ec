"""CANN's own logs that are read: those of a run's processes, written while it ran, and only files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ascendtune.machine.npu.plog import plogs_of


@pytest.fixture
def plogs(tmp_path: Path) -> Path:
    directory = tmp_path / "debug/plog"
    directory.mkdir(parents=True)
    return directory


def _read(plogs: Path, since: float = 0.0) -> list[str]:
    environment = {"ASCEND_PROCESS_LOG_PATH": str(plogs.parents[1])}
    return [path.name for path in plogs_of({7, 77}, environment, since=since)]


def test_logs_of_the_processes_that_were_written_to_since_the_start_are_read(plogs: Path) -> None:
    for name, written in (("plog-7_1.log", 9.0), ("plog-77_2.log", 5.0), ("plog-8_3.log", 9.0), ("plog-7.log", 9.0)):
        (plogs / name).write_text("")
        os.utime(plogs / name, (written, written))

    assert _read(plogs, since=6.0) == ["plog-7_1.log"]


def test_links_pipes_and_directories_are_not_read(plogs: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("")
    (plogs / "plog-7_1.log").symlink_to(tmp_path / "secret")
    os.mkfifo(plogs / "plog-7_2.log")
    (plogs / "plog-7_3.log").mkdir()

    assert _read(plogs) == []


def test_log_that_is_removed_meanwhile_is_left_out(plogs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (plogs / "plog-7_1.log").write_text("")
    lstat = Path.lstat

    def remove_first(path: Path) -> os.stat_result:
        if path.name == "plog-7_1.log":
            path.unlink()
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", remove_first)

    assert _read(plogs) == []
