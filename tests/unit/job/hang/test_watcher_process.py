from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ascendtune.core.procfs import stat_of
from ascendtune.core.rundir import RunDir
from ascendtune.job.hang import watcher, watcher_process

# As the launcher does: a child is started, then this process becomes another program.
_BECOME = """
import os, sys
from ascendtune.core import process
watcher = (sys.executable, "-m", "ascendtune.job.hang.watcher_process", str(os.getpid()), sys.argv[1])
process.start_detached_child(watcher, os.environ)
process.replace(["/bin/sleep", "60"], os.environ)
"""


def _ignores(pid: int, number: int) -> bool:
    ignored = Path(f"/proc/{pid}/status").read_text().split("SigIgn:")[1].split()[0]
    return bool(int(ignored, 16) >> (number - 1) & 1)


def _until(condition: object, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.mark.long
def test_watcher_ignores_signals_and_ends_with_its_worker(tmp_path: Path) -> None:
    RunDir(tmp_path).create("name: a\n", {}, {})
    with subprocess.Popen([sys.executable, "-c", _BECOME, str(tmp_path)]) as worker:
        try:
            shown = psutil.Process(worker.pid)
            _until(lambda: shown.name() == "sleep" and shown.children())
            (watcher,) = shown.children()
            _until(lambda: _ignores(watcher.pid, signal.SIGHUP))
            time.sleep(0.3)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
                watcher.send_signal(number)
            time.sleep(0.3)
            # On a loaded machine it may still be importing.
            assert watcher.is_running() and watcher.status() != psutil.STATUS_ZOMBIE
            assert os.getsid(watcher.pid) == watcher.pid and watcher.cwd() == "/"
        finally:
            worker.kill()
        worker.wait()
        assert psutil.wait_procs([watcher], timeout=5)[1] == []


def test_watcher_ends_at_once_when_the_worker_has_ended(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "ascendtune.job.hang.watcher_process", "1", str(tmp_path)]
    assert subprocess.run(argv, timeout=20).returncode == 0


@pytest.mark.long
@pytest.mark.parametrize(("looks_already", "is_removed"), [(False, False), (True, False), (False, True)])
def test_watcher_ends_with_the_run_when_the_worker_process_lives_on(
    tmp_path: Path, looks_already: bool, is_removed: bool
) -> None:
    run = RunDir(tmp_path / "run")
    run.create("name: a\n", {}, {})
    run.begin_attempt({})
    # The test's process is the worker: the watcher's waits are cut short.
    names = "_FIRST_LOOK_SECONDS", "_IS_OVER_EVERY_SECONDS"
    waits = (0.1, 0.1) if looks_already else (60, 0.1)
    code = "from ascendtune.job.hang import watcher_process\n"
    code += "".join(f"watcher_process.{name} = {seconds}\n" for name, seconds in zip(names, waits, strict=True))
    code += f"watcher_process.main('{os.getpid()}', '{run.path}')"
    with subprocess.Popen([sys.executable, "-c", code]) as watcher:
        try:
            time.sleep(1.5)
            assert watcher.poll() is None
            # Another process's attempt in this directory is not the worker's.
            record = run.read()
            run.update(state="stopped", attempts=[{**record["attempts"][0], "pid": 1}])
            time.sleep(1)
            assert watcher.poll() is None
            if is_removed:
                shutil.rmtree(run.path)
            else:
                run.update(state="finished", attempts=record["attempts"])
            assert watcher.wait(15) == 0
        finally:
            watcher.kill()


def test_paused_worker_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals = {"paused": signal.SIGSTOP, "continued": signal.SIGCONT}
    stages, looked_at = ["begun", *signals], list[str]()

    class Recording:
        def __init__(self, *_: object, **__: object) -> None: ...

        def look(self) -> None:
            looked_at.append(stage)

    def still_runs(worker: int, seconds: float) -> bool:
        nonlocal stage
        stage = stages.pop(0) if stages else ""
        if stage in signals:
            os.kill(worker, signals[stage])
            _until(lambda: (stat := stat_of(worker)) and (stat.state == "T") == (stage == "paused"))
        return bool(stage)

    stage = ""
    RunDir(tmp_path).create("name: a\n", {}, {})
    monkeypatch.setattr(watcher, "Watcher", Recording)
    monkeypatch.setattr(watcher_process, "_still_runs_after", still_runs)
    with subprocess.Popen(["sleep", "60"]) as worker:
        try:
            watcher_process._watch(worker.pid, tmp_path)
        finally:
            worker.kill()
    assert looked_at == ["begun", "continued"]
