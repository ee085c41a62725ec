from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from ascendtune.core.errors import MachineError
from ascendtune.job import registry
from ascendtune.job.spec import JobSpec

SPEC = JobSpec(("program", "run"), Path("runs/a"), nproc=2, kind="cpu")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "ascendtune" / "jobs"


def test_a_job_is_registered_and_closed() -> None:
    path = registry.register(SPEC, ["torchrun"])
    (record,) = registry.jobs()
    assert record["run_dir"] == str(Path("runs/a").resolve()) and record["argv"] == ["torchrun"]
    assert record["state"] == "running" and registry.is_alive(record)
    registry.close(path, 3)
    (record,) = registry.jobs()
    assert (record["state"], record["exit_code"]) == ("ended", 3)


def test_another_process_with_the_same_pid_is_not_the_job() -> None:
    registry.register(SPEC, [])
    (record,) = registry.jobs()
    assert not registry.is_alive({**record, "process_started": record["process_started"] - 100})
    assert not registry.is_alive({**record, "host": "elsewhere"})


def test_old_ended_jobs_are_forgotten_and_damaged_files_ignored(state: Path) -> None:
    state.mkdir(parents=True)
    old = state / "20200101-000000-1.json"
    old.write_text(json.dumps({"host": "elsewhere", "pid": 1, "process_started": 0}))
    month_ago = time.time() - 30 * 86400
    os.utime(old, (month_ago, month_ago))
    (state / "20200101-000000-2.json").write_text("{")
    registry.register(SPEC, [])
    assert not old.exists()
    assert len(list(registry.jobs())) == 1


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(MachineError, match="looking for a place to write"):
        registry.register(SPEC, [])
