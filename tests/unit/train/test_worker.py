"""The worker's process before training begins."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

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
    assert seen == [signal.default_int_handler]
