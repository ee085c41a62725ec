from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ascendtune.core import procfs


def test_a_process_tells_who_it_is() -> None:
    argv = [sys.executable, "-c", "import sys; f = open('/dev/full'); sys.stdin.read()", "a\n\x1b[2J b"]
    with subprocess.Popen(argv, env={"MARK": "x=y"}, stdin=subprocess.PIPE, start_new_session=True) as child:
        while "/dev/full" not in procfs.open_files(child.pid):
            time.sleep(0.01)
        stat = procfs.stat_of(child.pid)
        assert stat is not None and stat in list(procfs.stats())
        assert (stat.parent, stat.process_group, stat.session) == (os.getpid(), child.pid, child.pid)
        assert 0 <= stat.age_seconds < 30
        assert procfs.owner_of(child.pid) == os.getuid()
        assert procfs.environment_of(child.pid)["MARK"] == "x=y"
        assert procfs.command_of(child.pid).endswith("sys.stdin.read() a [2J b")
        assert (procfs.memory_of(child.pid) or 0) > 1e6
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert procfs.stat_of(child.pid) is None, "a zombie has ended"
    assert procfs.owner_of(child.pid) is None and procfs.environment_of(child.pid) == {}


def test_a_name_may_look_like_the_fields_behind_it() -> None:
    rename = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b') Z 1 (a'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", rename], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout and child.stdout.readline()
        stat = procfs.stat_of(child.pid)
        child.kill()
    assert stat is not None and stat.name == ") Z 1 (a" and stat.parent == os.getpid()


def test_this_machine_and_its_pids_have_names() -> None:
    assert len(procfs.boot_id()) == 36 and procfs.pid_namespace().startswith("pid:[")


def test_names_of_processes_that_are_not_text_are_shown_without_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "_PROC", tmp_path)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cmdline").write_bytes(b"")
    (tmp_path / "7" / "comm").write_bytes(b"\xd1\xb5\xc1\xb7 \x1b[2Jx\n")
    (tmp_path / "7" / "cgroup").write_bytes(b"0::/system.slice/\xd1\xb5.service\n")
    shown = procfs.command_of(7)
    assert shown.isprintable() and shown.endswith("[2Jx]") and procfs.is_service(7)
