from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.core.errors import InputError
from ascendtune.job import registry
from ascendtune.job.nodes.agent import joined
from ascendtune.job.record import state_of
from ascendtune.job.spec import JobSpec


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobSpec:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return JobSpec(("worker",), tmp_path / "run", nproc=8, kind="npu")


def test_a_part_of_a_job_is_noted_and_so_is_its_end(spec: JobSpec) -> None:
    for exit_code in (137, 0):
        # The second time it is a restart.
        with joined(spec, ["node1", "node2"], "laptop") as ended_with:
            job = registry.find(spec.id)
            assert (job.hosts, job.started_from, state_of(job)) == (("node1", "node2"), "laptop", "running")
            ended_with(exit_code)
        assert registry.find(spec.id).exit_code == exit_code


def test_agent_leaves_an_existing_job_record_unchanged(spec: JobSpec) -> None:
    theirs = registry.register(spec, spec.argv, watched=True, hosts=["node1", "node2"])
    with joined(spec, ["node1", "node2"], "node1") as ended_with:
        ended_with(1)
    assert registry.find(spec.id) == theirs


def test_a_job_continues_where_nothing_can_be_noted(spec: JobSpec, tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with joined(spec, ["node1"], "laptop") as ended_with:
        ended_with(0)
    with pytest.raises(InputError) as caught:
        registry.find(spec.id)
    assert caught.value.code == "unknown-job"
