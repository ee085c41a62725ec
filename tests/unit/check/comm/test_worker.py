"""The process of a rank that takes part in a test of communication."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ascendtune.check.comm import worker
from ascendtune.check.comm.notes import read_notes


def test_device_that_does_not_open_is_noted_as_the_place_of_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(kind: str, local_rank: int) -> None:
        raise RuntimeError(f"no {kind} {local_rank}")

    monkeypatch.setattr(worker, "open_device", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    assert worker.main("npu", str(tmp_path), json.dumps({"task": "trial", "timeout_seconds": 1})) == 1
    (noted,) = read_notes(tmp_path, 1)
    assert noted.notes == ({"at": "opening the device"}, {"error": "RuntimeError: no npu 0"})
