"""The record of a run whose job has been stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.core.rundir import RunDir
from ascendtune.job import registry, stop
from ascendtune.job.spec import JobSpec


@pytest.mark.parametrize(("was_killed", "state"), [(True, "stopped"), (False, "running")])
def test_end_is_noted_in_the_run_only_where_something_had_to_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_killed: bool, state: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = RunDir(tmp_path / "run")
    run.create("name: a\n", {}, {})
    run.begin_attempt({})
    job = registry.register(JobSpec(("x",), run.path, nproc=1, kind="cpu"), [], watched=False)
    # A worker that ended by itself has noted its end, or is still doing so.
    stop._note_the_end(job, was_killed)
    assert run.read()["state"] == state
    assert ((run.read()["exit_cause"] or {}).get("kind") == "stop") is was_killed
