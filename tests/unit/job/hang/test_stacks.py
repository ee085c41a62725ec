"""Stacks of processes that hang in different ways, without torch."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ascendtune.core.errors import MachineError
from ascendtune.core.procfs import boot_id, has_signal_handler, pid_namespace, stat_of
from ascendtune.core.rundir import FORCED_STACKS_SIGNAL, STACKS_SIGNAL, RunDir
from ascendtune.job.hang import flight_recorder, stacks
from ascendtune.job.hang.heartbeat import beats_of, newest_beats
from cluster import until

pytestmark = pytest.mark.long

_WORKER = """
import ctypes, sys, time
from ascendtune.core.rundir import RunDir
from ascendtune.train.stack_dump import block_stacks_signal, dump_stacks_on_signals
if sys.argv[2] != "deaf":
    block_stacks_signal()
    dump_stacks_on_signals(RunDir(sys.argv[1]))
def hangs_here():
    print(flush=True)
    # PyDLL, as many drivers' bindings, keeps the interpreter's lock.
    while sys.argv[2] == "keeps the lock":
        # Until a signal is handled.
        ctypes.PyDLL(None).sleep(60)
    time.sleep(60)
hangs_here()
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    # No py-spy: neither beside this Python nor on the path.
    monkeypatch.setattr(stacks.sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    run = RunDir(tmp_path)
    run.heartbeats.mkdir()
    return run


@pytest.fixture
def worker(run: RunDir, request: pytest.FixtureRequest) -> Iterator[int]:
    """The pid of rank 0; the test's parameter says whether it answers to the signal."""
    python = str(Path(sys.prefix) / "bin" / "python")
    argv = [python, "-c", _WORKER, str(run), getattr(request, "param", "answers")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, "RANK": "0"}) as process:
        assert process.stdout and process.stdout.readline()
        started = stat_of(process.pid)
        assert started is not None
        beat = {
            "phase": "data", "step": 3, "monotonic": time.monotonic(), "attempt": 1,
            "pid": process.pid, "start_ticks": started.start_ticks, "host": socket.gethostname(),
            "boot_id": boot_id(), "pid_namespace": pid_namespace(),
        }  # fmt: skip
        (run.heartbeats / "rank_0.json").write_text(json.dumps(beat))
        yield process.pid
        process.kill()


def _collect(run: RunDir) -> tuple[Path, stacks.RankStack]:
    directory, (stack,) = stacks.collect(run.path, newest_beats(run.path))
    return directory, stack


def test_a_worker_writes_its_own_stacks_as_often_as_it_is_asked(run: RunDir, worker: int) -> None:
    for _ in range(2):
        directory, stack = _collect(run)
        assert stack.source == "the worker itself" and stack.frames[0].function == "hangs_here"
        text = (directory / "rank_0.txt").read_text()
        assert text.startswith(f"rank 0, process {worker} on {socket.gethostname()}: data of step 3 for ")
        assert text.count("in hangs_here") == 1, "what was written before is not taken again"
    assert len(list(run.logs.glob("stacks_*"))) == 2


@pytest.mark.long
@pytest.mark.parametrize("worker", ["keeps the lock"], indirect=True)
def test_worker_that_keeps_the_interpreters_lock_is_read_without_it(run: RunDir, worker: int) -> None:
    # It prints its line before it keeps the lock and sleeps.
    until(lambda: (now := stat_of(worker)) is not None and now.state == "S")
    _, stack = _collect(run)
    assert stack.source == "faulthandler" and stack.frames[0].function == "hangs_here"


@pytest.mark.parametrize("worker", ["deaf"], indirect=True)
def test_a_process_that_the_signal_would_end_is_not_sent_it(run: RunDir, worker: int) -> None:
    assert not has_signal_handler(worker, STACKS_SIGNAL) and not has_signal_handler(worker, FORCED_STACKS_SIGNAL)
    _, stack = _collect(run)
    assert stack.frames == () and "does not answer to SIGUSR1" in stack.source
    assert stat_of(worker) is not None


def test_a_stopped_process_is_told_as_such_and_not_asked(run: RunDir, worker: int) -> None:
    os.kill(worker, signal.SIGSTOP)
    while (now := stat_of(worker)) and now.state != "T":
        time.sleep(0.01)
    began = time.monotonic()
    _, stack = _collect(run)
    assert time.monotonic() - began < 2
    assert stack.is_stopped and f"kill -CONT {worker}" in stack.source and stack.frames == ()


def test_an_ended_process_has_no_stack(run: RunDir, worker: int) -> None:
    os.kill(worker, signal.SIGKILL)
    while stat_of(worker):
        time.sleep(0.01)
    _, found = stacks.collect(run.path, newest_beats(run.path))
    assert found == []


def test_py_spy_is_taken_where_it_works(
    run: RunDir, worker: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    py_spy = tmp_path / "py-spy"
    py_spy.write_text('#!/bin/sh\n[ "$1 $2" = "dump --pid" ] && echo "Thread $3 (idle): \\"MainThread\\"" && '
                      'echo "    seen_from_outside (a.py:5)"\n')  # fmt: skip
    py_spy.chmod(py_spy.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    _, stack = _collect(run)
    assert stack.source == "py-spy" and stack.frames[0].function == "seen_from_outside"
    py_spy.write_text("#!/bin/sh\necho 'Permission denied' >&2; exit 1\n")
    _, stack = _collect(run)
    assert stack.source == "the worker itself"


def test_a_program_that_is_not_ours_is_read_by_py_spy_alone_also_below_a_shell(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.heartbeats.rmdir()
    with subprocess.Popen(["/bin/sh", "-c", "trap : USR1; /bin/sleep 60; true"], start_new_session=True) as shell:
        while not (found := psutil.Process(shell.pid).children()):
            time.sleep(0.01)
        started = stat_of(shell.pid)
        assert started is not None
        beats = beats_of(run.path, {0: started})
        _, (stack,) = stacks.collect(run.path, beats)
        assert stack.frames == () and stack.source.startswith("no stack: py-spy is not installed")
        py_spy = tmp_path / "py-spy"
        py_spy.write_text(f'#!/bin/sh\n[ "$3" = {found[0].pid} ] || exit 1\n'
                          'echo "Thread 1 (idle)"; echo "    waits (a.py:5)"\n')  # fmt: skip
        py_spy.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        _, (stack,) = stacks.collect(run.path, beats)
        assert stack.source == "py-spy" and str(stack.frames[0]) == "waits at a.py:5"
        os.killpg(shell.pid, signal.SIGKILL)


def test_unwritable_directory_raises_machine_error(run: RunDir, worker: int) -> None:
    run.logs.write_text("")
    with pytest.raises(MachineError) as caught:
        stacks.collect(run.path, newest_beats(run.path))
    assert caught.value.code == "not-a-directory"


@pytest.mark.parametrize("library", ["NCCL", "HCCL"])
def test_a_flight_recorder_is_asked_through_its_pipe(tmp_path: Path, library: str) -> None:
    """A process that keeps the pipe as torch's process groups do."""
    os.mkfifo(tmp_path / "pipe_3.pipe")
    listen = (
        "import os, sys, time\n"
        "fd = os.open(sys.argv[1] + '/pipe_3.pipe', os.O_RDONLY | os.O_NONBLOCK)\n"
        "print(flush=True)\n"
        "while not os.read(fd, 10): time.sleep(0.02)\n"
        "open(sys.argv[1] + '/trace_3', 'w').write('the last collectives')\n"
        "time.sleep(60)\n"
    )
    env = {
        f"TORCH_{library}_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_",
        f"TORCH_{library}_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/trace_",
    }
    (tmp_path / "to").mkdir()
    with subprocess.Popen([sys.executable, "-c", listen, str(tmp_path)], stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout and process.stdout.readline()
        recording = flight_recorder.request_dump(process.pid, 3)
        assert recording is not None
        flight_recorder.collect_dumps([recording], tmp_path / "to")
        process.kill()
    assert (tmp_path / "to" / "trace_3").read_text() == "the last collectives"
    assert flight_recorder.request_dump(os.getpid(), 3) is None, "without a recorder nothing is waited for"
