"""The worker's process before training begins."""

from __future__ import annotations

import atexit
import os
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.interrupts import interrupt
from ascendtune.core.rundir import RunDir
from ascendtune.train import worker


def test_ctrl_c_stops_a_worker_that_a_script_started_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell without job control starts what ends with `&` so that it ignores SIGINT, by which `jobs stop` asks."""
    seen = []
    monkeypatch.setattr(worker, "claimed", lambda run, start_id: nullcontext({}))
    monkeypatch.setattr(worker, "dump_stacks_on_signals", lambda run: None)
    for name in ("restrict_umask", "block_stacks_signal"):
        monkeypatch.setattr(worker, name, lambda: None)

    def attempt() -> Any:
        return lambda run, record: seen.append(signal.getsignal(signal.SIGINT))

    monkeypatch.setattr(worker, "_import_attempt", attempt)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert worker.main([str(tmp_path)]) == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [interrupt]


def test_memory_error_outside_of_an_attempt_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "claimed", lambda run, start_id: nullcontext({}))
    monkeypatch.setattr(worker, "dump_stacks_on_signals", lambda run: None)
    for name in ("restrict_umask", "block_stacks_signal"):
        monkeypatch.setattr(worker, name, lambda: None)

    def exhausted() -> Any:
        raise MemoryError

    monkeypatch.setattr(worker, "_import_attempt", exhausted)
    before = signal.getsignal(signal.SIGINT)
    try:
        assert worker.main([str(tmp_path)]) == 3
    finally:
        signal.signal(signal.SIGINT, before)
    said = capfd.readouterr().err
    assert "out of host memory" in said and "bug" not in said


def test_ctrl_c_while_torch_is_imported_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a record the run would stay `created`, and its job would be `lost`."""
    run, codes = RunDir(tmp_path / "run"), list[int]()
    run.create("", {}, {})
    monkeypatch.setattr(worker, "claimed", lambda run, start_id: nullcontext(run.read()))
    monkeypatch.setattr(worker, "dump_stacks_on_signals", lambda run: None)
    for name in ("restrict_umask", "block_stacks_signal"):
        monkeypatch.setattr(worker, name, lambda: None)

    def interrupted() -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "_import_attempt", interrupted)
    monkeypatch.setattr(os, "_exit", codes.append)
    before = signal.getsignal(signal.SIGINT)
    try:
        worker.main([str(run)])
    finally:
        signal.signal(signal.SIGINT, before)
    record = run.read()
    assert codes == [130] and record["state"] == "stopped" and record["attempts"][-1]["exit_code"] == 130


def test_package_that_cannot_be_imported_is_recorded_and_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    monkeypatch.setattr(worker, "claimed", lambda run, start_id: nullcontext(run.read()))
    monkeypatch.setattr(worker, "dump_stacks_on_signals", lambda run: None)
    for name in ("restrict_umask", "block_stacks_signal"):
        monkeypatch.setattr(worker, name, lambda: None)

    def unfit() -> Any:
        raise ImportError("tokenizers>=0.23.1,<0.24.0 is required, but found tokenizers==0.22.2.\nTry: something")

    monkeypatch.setattr(worker, "_import_attempt", unfit)
    before = signal.getsignal(signal.SIGINT)
    try:
        assert worker.main([str(run)]) == 3
    finally:
        signal.signal(signal.SIGINT, before)
    said, cause = capfd.readouterr().err, run.read()["exit_cause"]
    assert "found tokenizers==0.22.2" in said and "ascendtune doctor" in said and "bug" not in said
    assert run.read()["state"] == "failed" and cause["code"] == "package-not-importable"


def test_rank_that_failed_does_not_wait_at_the_end_of_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the interpreter's end torch_npu waits for collectives that no other rank joins."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    child = os.fork()
    if not child:
        atexit.register((tmp_path / "waited").touch)
        worker._leave(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("ranks", "code"), [("2", 0), ("1", 3)])
def test_process_that_nothing_keeps_ends_as_usual(ranks: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", ranks)
    with pytest.raises(SystemExit) as caught:
        worker._leave(code)
    assert caught.value.code == code
