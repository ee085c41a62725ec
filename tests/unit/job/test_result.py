"""The end of a job: exit codes as in a shell, and the cause in fields."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ascendtune.core.errors import CheckFailed, MachineError, Stopped
from ascendtune.core.exit_cause import CauseKind, exit_cause, exit_cause_of_worker
from ascendtune.core.rundir import RunDir
from ascendtune.job.result import LauncherExit, job_result, shell_exit_code


@pytest.mark.parametrize("ending", [0, 1, 3, 77, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGINT])
def test_an_exit_code_is_the_one_that_a_shell_shows(ending: int) -> None:
    program = f"import os; os.kill(os.getpid(), {-ending})" if ending < 0 else f"raise SystemExit({ending})"
    code = subprocess.run([sys.executable, "-S", "-c", program], timeout=30).returncode
    shown = subprocess.run(["bash", "-c", f"{sys.executable} -S -c '{program}' 2>/dev/null; exit $?"], timeout=30)
    assert shell_exit_code(code) == shown.returncode


_TORCHRUN = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : node2
  rank      : 3 (local_rank: 1)
  exitcode  : {} (pid: 7)
"""


@pytest.mark.parametrize(
    ("exit_code", "kind", "signal_name", "code", "ends_with"),
    [
        (7, "exit", None, "process-exited", 1),
        # A rank that lost another one: whatever starts failed jobs again is to do so.
        (3, "exit", None, "process-exited", 3),
        (-9, "signal", "SIGKILL", "process-killed", 1),
        (-11, "signal", "SIGSEGV", "process-crashed", 1),
    ],
)
def test_the_cause_of_a_rank_that_recorded_none_has_kind_rank_host_and_signal(
    tmp_path: Path, exit_code: int, kind: str, signal_name: str | None, code: str, ends_with: int
) -> None:
    run = _running(tmp_path)
    (run.logs / "launcher.log").write_text(_TORCHRUN.format(exit_code))
    before = run.read()

    result = job_result(run.path, before, LauncherExit(1, run.logs / "launcher.log", host="node2"), None)

    cause = run.read()["exit_cause"]
    assert (cause["kind"], cause["signal"], cause["code"]) == (kind, signal_name, code)
    assert (cause["rank"], cause["host"], cause["exit_code"]) == (3, "node2", ends_with)
    assert result.exit_code == ends_with and result.is_failure
    # torchrun does not tell of a rank that left with 0.
    assert ("exited without an error" in cause["remedy"]) == (exit_code == 3)


@pytest.mark.parametrize("has_log", [True, False])
def test_the_cause_of_a_rank_is_looked_for_in_its_own_log_where_it_has_one(tmp_path: Path, has_log: bool) -> None:
    run = _running(tmp_path)
    launcher_log, own = run.logs / "launcher.log", run.logs / "rank_3.log"
    launcher_log.write_text(_TORCHRUN.format(-11))
    if has_log:
        own.write_text("")
    error = job_result(run.path, run.read(), LauncherExit(1, launcher_log), None).error
    assert error is not None and error.where == str(own if has_log else launcher_log)


@pytest.mark.parametrize(
    ("second", "code", "root", "blamed"),
    [
        *[(0, -9, 1, 1), (1, -9, 1, 3), (0, -6, 1, 3), (0, -15, 1, 3)],
        *[(0, -11, 3, 1), (1, -11, 3, 3), (0, 1, 3, 1), (0, 3, 3, 3), (0, -15, 3, 3)],
    ],
)
def test_a_rank_killed_in_the_second_in_which_another_lost_it_is_the_cause(
    tmp_path: Path, second: int, code: int, root: int, blamed: int
) -> None:
    run = _running(tmp_path)
    listed = (
        f"Failures:\n[1]:\n  time      : 2026-01-01_00:00:0{second}\n  host      : node2\n"
        f"  rank      : 1 (local_rank: 0)\n  exitcode  : {code} (pid: 6)  (SIGNAL)\n---\n"
    )
    (run.logs / "launcher.log").write_text(listed + _TORCHRUN.format(root))
    job_result(run.path, run.read(), LauncherExit(1, run.logs / "launcher.log"), None)
    assert run.read()["exit_cause"]["rank"] == blamed


def test_a_torchrun_that_was_killed_is_the_cause_although_its_ranks_stopped_with_a_checkpoint(tmp_path: Path) -> None:
    run = _running(tmp_path)
    before = run.read()
    (run.logs / "launcher.log").write_text("")
    stop = exit_cause_of_worker(Stopped("stopped by SIGTERM after step 5", remedy="", signal_number=signal.SIGTERM), 0)
    run.end_attempt("stopped", stop)

    result = job_result(run.path, before, LauncherExit(-9, run.logs / "launcher.log"), None)

    record = run.read()
    assert result.is_failure and record["state"] == "failed"
    assert (record["exit_cause"]["code"], record["exit_cause"]["kind"]) == ("process-killed", "signal")
    # Of a user who asked at the same time the stop is the answer.
    run.end_attempt("stopped", stop)
    asked = job_result(run.path, before, LauncherExit(-9, run.logs / "launcher.log"), signal.SIGTERM)
    assert asked.exit_code == 143 and not asked.is_failure


def test_the_cause_is_the_launcher_when_torchrun_names_no_rank(tmp_path: Path) -> None:
    run = _running(tmp_path)
    (run.logs / "launcher.log").write_text("RendezvousTimeoutError\n")
    job_result(run.path, run.read(), LauncherExit(1, run.logs / "launcher.log"), None)
    cause = run.read()["exit_cause"]
    assert (cause["kind"], cause["rank"], cause["code"]) == ("launcher", None, "workers-not-connected")


def test_the_cause_is_a_lost_host_when_it_stopped_answering(tmp_path: Path) -> None:
    run = _running(tmp_path)
    lost = MachineError("nodeb has been silent", code="host-lost", remedy="look at it")
    job_result(run.path, run.read(), LauncherExit(1, None, host="nodeb", lost=lost), None)
    cause = run.read()["exit_cause"]
    assert (cause["kind"], cause["host"], cause["code"], cause["exit_code"]) == ("lost_host", "nodeb", "host-lost", 3)


@pytest.mark.parametrize(
    ("kind", "shown"),
    [("signal", "rank 0 was killed (SIGKILL)"), ("exception", None)],
    ids=["by a launcher", "by rank 0"],
)
def test_a_cause_of_rank_0_is_shown_unless_rank_0_has_printed_it(
    tmp_path: Path, kind: CauseKind, shown: str | None
) -> None:
    run = _running(tmp_path)
    before = run.read()
    run.end_attempt(
        "failed", exit_cause(kind, CheckFailed("rank 0 was killed (SIGKILL)", code="test", remedy="look"), rank=0)
    )

    result = job_result(run.path, before, LauncherExit(1, run.logs / "launcher.log"), None)

    assert (result.error.what if result.error else None) == shown


def test_equal_failures_are_equal_by_their_fields_whatever_their_sentences(tmp_path: Path) -> None:
    def recorded(name: str, error: Exception) -> object:
        run = _running(tmp_path / name)
        before = run.read()
        run.end_attempt("failed", exit_cause_of_worker(error, 1))
        return job_result(run.path, before, LauncherExit(1, run.logs / "launcher.log"), None).recorded

    one = recorded("a", CheckFailed("the loss is nan", code="loss-not-finite", remedy="look"))
    assert one == recorded("b", CheckFailed("the loss is not a number", code="loss-not-finite", remedy="look"))
    assert one != recorded("c", CheckFailed("the loss is nan", code="gradient-not-finite", remedy="look"))
    assert recorded("d", RuntimeError("port 1")) == recorded("e", RuntimeError("port 1"))
    assert recorded("f", RuntimeError("port 1")) != recorded("g", RuntimeError("port 2"))


def _running(path: Path) -> RunDir:
    run = RunDir(path / "run")
    run.create("", {}, {})
    run.begin_attempt({})
    return run


def test_launcher_log_that_is_missing_or_a_pipe_is_no_error_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log/launcher.log"
    log.parent.mkdir()
    for _ in range(2):
        ending = LauncherExit(1, log, host="node2")
        assert job_result(tmp_path, None, ending, None).error.code == "workers-not-connected"  # type: ignore[union-attr]
        if not log.exists():
            os.mkfifo(log)


@pytest.mark.parametrize("steps", [[], [5, 10]])
def test_a_stop_that_no_rank_recorded_says_where_the_next_start_begins(tmp_path: Path, steps: list[int]) -> None:
    run = _running(tmp_path)
    for step in steps:
        run.checkpoint(step).mkdir(parents=True)
    ending = LauncherExit(-signal.SIGKILL, run.logs / "launcher.log")
    assert job_result(run.path, run.read(), ending, signal.SIGINT).exit_code == 130
    record = run.read()
    assert record["state"] == "stopped" and record["exit_cause"]["kind"] == "stop"
    assert ("step 10" if steps else "no checkpoint yet") in record["exit_cause"]["remedy"]
