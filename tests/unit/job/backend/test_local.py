"""A node's part of a job ends where another node's has failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.core.rundir import RunDir
from ascendtune.job.backend import local


def test_failure_of_another_node_counts_once_our_ranks_had_time_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(local.time, "monotonic", lambda: now)
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    run.update(state="failed", start_id="1")
    others = local.OtherNodes(run.path, run.read())
    assert not others.have_failed()
    now += 100
    assert not others.have_failed(), "the record is still that of the attempt before"
    run.update(state="running")
    now += 100
    assert not others.have_failed()
    run.update(state="failed", start_id="2")
    now += 100
    assert not others.have_failed(), "our ranks may end by themselves"
    now += 19
    assert not others.have_failed()
    now += 2
    assert others.have_failed()
