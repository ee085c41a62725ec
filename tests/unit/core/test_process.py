from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ascendtune.core import captured
from ascendtune.core.process import PipedChild, run
from ascendtune.core.procfs import stat_of


def test_run_returns_both_streams_and_the_exit_code() -> None:
    done = run(["sh", "-c", "printf out; printf err >&2; exit 3"])
    assert (done.exit_code, done.output, done.error, done.timed_out) == (3, "out", "err", False)


def test_a_program_that_prints_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As git does what a server tells it to."""
    monkeypatch.setattr(captured, "MOST_BYTES", 1 << 20)
    began = time.monotonic()
    done = run(["yes"], timeout_seconds=60)
    assert done.exit_code == 124 and done.output.startswith("y\n") and len(done.output) <= 2 << 20
    assert "MiB of output" in done.error and not done.timed_out and time.monotonic() - began < 50


def test_a_program_that_closes_its_streams_is_waited_for() -> None:
    assert run(["sh", "-c", "exec >&- 2>&-; sleep 0.2; exit 3"]).exit_code == 3
    assert run(["sh", "-c", "exec >&- 2>&-; sleep 60"], timeout_seconds=0.3).timed_out


def test_bytes_that_are_not_text_are_not_errors() -> None:
    assert run(["sh", "-c", r"printf 'a\377b'"]).output == "a\ufffdb"


def test_output_is_utf_8_or_in_the_encoding_of_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locale.getpreferredencoding", lambda do_setlocale=True: "GB18030")
    # 分支, first as git prints it in every locale.
    done = run(["sh", "-c", r"printf '\345\210\206\346\224\257\r\n'; printf '\267\326\326\247' >&2"])
    assert (done.output, done.error) == ("分支\n", "分支")


def test_programs_that_cannot_run(tmp_path: Path) -> None:
    assert run([str(tmp_path / "none")]).exit_code == 127
    (tmp_path / "forbidden").touch(0o644)
    assert run([str(tmp_path / "forbidden")]).exit_code == 126
    (tmp_path / "foreign").write_bytes(b"\x7fELF of another machine")
    (tmp_path / "foreign").chmod(0o755)
    assert run([str(tmp_path / "foreign")]).exit_code == 126


@pytest.mark.long
def test_program_that_no_directory_of_path_has_is_missing_also_where_one_is_closed(tmp_path: Path) -> None:
    """The kernel answers as for a directory that this user may not search, such as one of root's."""
    (tmp_path / "npu-smi").mkdir()
    done = run(["npu-smi"], env={"PATH": str(tmp_path)})
    assert (done.exit_code, done.error) == (127, "npu-smi: not found")


def test_no_answer_in_time() -> None:
    began = time.monotonic()
    done = run([sys.executable, "-c", "import time; print('half', flush=True); time.sleep(60)"], timeout_seconds=2)
    assert time.monotonic() - began < 30
    assert (done.exit_code, done.timed_out, done.output) == (124, True, "half\n")


def test_a_child_that_keeps_the_pipe_open_does_not_hold_us() -> None:
    began = time.monotonic()
    assert run(["sh", "-c", "sleep 60 & sleep 60"], timeout_seconds=0.3).timed_out
    assert time.monotonic() - began < 30


_IN_A_GROUP_OF_ITS_OWN = f"{sys.executable} -c 'import os, time; os.setpgid(0, 0); time.sleep(60)' & echo $!; sleep 60"


_IN_A_SESSION_OF_ITS_OWN = (
    "trap '' TERM; (trap '' TERM; exec "
    f"{sys.executable} -c 'import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(60)') & sleep 60"
)


@pytest.mark.long
@pytest.mark.parametrize(
    "leader",
    ["sleep 60 & echo $!; sleep 60", "sleep 60 & echo $!", _IN_A_GROUP_OF_ITS_OWN, _IN_A_SESSION_OF_ITS_OWN],
    ids=["hangs", "has ended", "other group", "other session"],
)
def test_time_out_ends_grandchildren(leader: str) -> None:
    done = run(["sh", "-c", leader], timeout_seconds=2)
    assert done.timed_out
    deadline = time.monotonic() + 30
    while (found := stat_of(int(done.output))) is not None and found.state != "Z" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found is None or found.state == "Z"


_RUNS_A_SCRIPT = """
import os, pathlib, subprocess, sys, time
from ascendtune.core.process import programs_end_with_us, run
from ascendtune.core.threads import run_in_daemon_thread

class SignalledAtItsStart(subprocess.Popen):
    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        while not (pids := pathlib.Path(sys.argv[1])).exists() or not pids.read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), int(sys.argv[3]))
        time.sleep(0.2)

if sys.argv[3:]:
    subprocess.Popen = SignalledAtItsStart

def hang():
    run(["sh", "-c", f"sleep 60 & echo $! $$ > {sys.argv[1]}; wait"])

if sys.argv[2] == "beside":
    with programs_end_with_us():
        run_in_daemon_thread(hang).result()
hang()
"""


@pytest.mark.parametrize(
    ("number", "thread"),
    [
        (signal.SIGTERM, "main"),
        (signal.SIGHUP, "main"),
        (signal.SIGTERM, "beside"),
        (signal.SIGINT, "beside"),
        (signal.SIGKILL, "main"),
    ],
)
@pytest.mark.parametrize("moment", ["while it runs", "at its start"])
def test_program_that_runs_ends_with_us(number: signal.Signals, thread: str, moment: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    argv = [sys.executable, "-c", _RUNS_A_SCRIPT, str(pids), thread]
    if moment == "at its start":
        argv.append(str(int(number)))
    us = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not (pids.exists() and (words := pids.read_text().split())):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child, script = map(int, words)
    if moment == "while it runs":
        us.send_signal(number)
    assert us.wait(30) == -number
    deadline = time.monotonic() + 30
    # After SIGKILL the kernel ends the program itself, not what it has started.
    gone = {script} if number == signal.SIGKILL else {script, child}
    try:
        while alive := [pid for pid in gone if stat_of(pid)]:
            assert time.monotonic() < deadline, alive
            time.sleep(0.02)
    finally:
        for pid in {script, child}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_own_handler_of_a_stop_signal_is_kept() -> None:
    taken: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: taken.append(number))
    try:
        assert run(["sh", "-c", f"kill -TERM {os.getpid()}; echo on"]).output == "on\n"
        assert taken == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.long
def test_a_program_that_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    survivors: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: survivors.append(group))
    try:
        began = time.monotonic()
        assert run(["sleep", "60"], timeout_seconds=0.2).timed_out
        assert time.monotonic() - began < 30
    finally:
        for pid in survivors:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_killed_piped_child_leaves_no_helper_process() -> None:
    child = PipedChild(["sh", "-c", "sleep 60 & echo $!; wait"])
    helper = int(next(child.output_lines()))
    child.kill()
    assert child.wait(5) == -signal.SIGKILL
    deadline = time.monotonic() + 30
    while (stat := stat_of(helper)) is not None:
        assert time.monotonic() < deadline, stat
        time.sleep(0.01)


def test_a_line_without_end_is_read_in_pieces() -> None:
    child = PipedChild(["head", "-c", "50000000", "/dev/zero"])
    sizes = [len(line) for line in child.output_lines()]
    assert max(sizes) <= 16 << 20 and sum(sizes) == 50_000_000
    child.kill()
