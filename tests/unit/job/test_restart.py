"""The decision on another attempt."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ascendtune.core.rundir import RunDir
from ascendtune.job import registry
from ascendtune.job.restart import run_to_the_end
from ascendtune.job.result import JobResult
from ascendtune.job.spec import JobSpec
from ascendtune.job.stop_signals import StopSignals


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobSpec:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return JobSpec(("program",), tmp_path / "run", nproc=2, kind="cpu", max_restarts=2)


def _run(spec: JobSpec, outcomes: list[JobResult], *, interrupt: bool = False) -> tuple[int, int]:
    """(exit code, attempts left over)."""
    left = list(outcomes)

    def attempt(asked: StopSignals) -> JobResult:
        if interrupt:
            os.kill(os.getpid(), signal.SIGINT)
        return left.pop(0)

    job = registry.register(spec, [], watched=True)
    ended = run_to_the_end(spec, job, attempt)
    noted = registry.named(job.id)
    assert noted is not None and noted.exit_code == ended.exit_code
    return ended.exit_code, len(left)


def test_failures_are_tried_again_as_often_as_allowed(spec: JobSpec) -> None:
    assert _run(spec, [JobResult(1), JobResult(3), JobResult(0)]) == (0, 0)
    assert _run(spec, [JobResult(1), JobResult(1), JobResult(3), JobResult(0)]) == (3, 1)


def test_a_finished_run_a_stop_and_a_wrong_recipe_are_not_tried_again(spec: JobSpec) -> None:
    for code in (0, 2, 130):
        assert _run(spec, [JobResult(code), JobResult(0)]) == (code, 1)


def test_no_attempt_follows_a_stop_signal_although_a_rank_fails(spec: JobSpec) -> None:
    assert _run(spec, [JobResult(1), JobResult(0)], interrupt=True) == (1, 1)


def test_a_failure_that_repeats_without_a_checkpoint_is_not_tried_a_third_time(spec: JobSpec) -> None:
    one, other = JobResult(1, recorded=("exception", "loss-not-finite", None, 6)), JobResult(1, recorded=("oom",))
    assert _run(spec, [one, one, JobResult(0)]) == (1, 1)
    assert _run(spec, [one, other, JobResult(0)]) == (0, 0)


@pytest.mark.parametrize(
    ("resume_from", "own_steps", "said"),
    [
        (None, [], "from the beginning"),
        (None, [20, 40], "from step 40"),
        ("other/checkpoints/step_30", [], "from other/checkpoints/step_30"),
        ("other/checkpoints/step_30", [40], "from step 40"),
        # The attempt failed before it had read the checkpoint that it was given, and later ones are there still.
        ("run/checkpoints/step_20", [20, 40], "from step 20"),
    ],
)
def test_restart_names_the_checkpoint_that_the_worker_reads(
    spec: JobSpec, caplog: pytest.LogCaptureFixture, resume_from: str | None, own_steps: list[int], said: str
) -> None:
    place = spec.run_dir.parent
    run = RunDir(spec.run_dir)
    run.create("", {}, {"resume_from": resume_from and str(place / resume_from)})
    for step in own_steps:
        run.checkpoint(step).mkdir()
    caplog.set_level("INFO")
    _run(spec, [JobResult(1), JobResult(0)])
    assert f"resuming {said}, 1 restart left" in caplog.text.replace(f"{place}/", "")


def test_restart_of_a_program_that_keeps_no_run_does_not_say_where_it_begins(
    spec: JobSpec, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    _run(spec, [JobResult(1), JobResult(0)])
    assert "1 restart left" in caplog.text
    assert "resuming" not in caplog.text
