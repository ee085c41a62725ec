from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.rundir import RunDir
from ascendtune.job import registry
from ascendtune.job.record import Job, attempt_of, is_alive, state_of
from ascendtune.job.spec import JobSpec

SPEC = JobSpec(("program", "run"), Path("runs/a"), nproc=2, kind="cpu")
MONTH_SECONDS = 30 * 86400


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "ascendtune" / "jobs"


def _registered(name: str = "runs/a", *, watched: bool = True) -> Job:
    return registry.register(JobSpec(("program",), Path(name), nproc=2, kind="cpu"), ["torchrun"], watched=watched)


def _noted(job: Job, state: Path) -> None:
    """Write what another process, or another machine, would have written."""
    (state / f"{job.id}.json").write_text(json.dumps(job.as_json()))


def test_a_job_is_registered_and_closed() -> None:
    job = registry.register(SPEC, ["torchrun"], watched=True)
    assert list(registry.jobs()) == [job]
    assert job.run_dir == Path("runs/a").resolve() and job.argv == ("torchrun",) and job.uid == os.getuid()
    assert state_of(job) == "running" and is_alive(job)
    registry.close(job, 3)
    (ended,) = registry.jobs()
    assert (state_of(ended), ended.exit_code) == ("ended", 3)
    assert ended.ended is not None and ended.ended >= job.started


def test_devices_noted_later_are_kept_when_the_job_closes() -> None:
    job = registry.register(SPEC, ["torchrun"], watched=True, hosts=["a", "b"])
    registry.note_devices(job, "npu", 16)
    registry.close(job, 0)
    (ended,) = registry.jobs()
    assert (ended.kind, ended.nproc, ended.exit_code) == ("npu", 16, 0)


def test_secrets_of_a_command_line_are_not_kept(state: Path) -> None:
    job = registry.register(SPEC, ["env", "HF_TOKEN=hunter2", "train.py"], watched=True)
    assert "hunter2" not in (state / f"{job.id}.json").read_text()
    assert job.argv == ("env", "HF_TOKEN=***", "train.py")


def test_a_job_is_closed_however_it_ends() -> None:
    for error, code in ((InputError("no", code="test", remedy="yes"), 2), (KeyboardInterrupt(), 1)):
        job = _registered()
        with pytest.raises(type(error)), registry.closing(job):
            raise error
        assert registry.reread(job).exit_code == code
    with registry.closing(job) as ended_with:
        ended_with(7)
    assert registry.reread(job).exit_code == 7


def test_another_process_with_the_same_pid_is_not_the_job() -> None:
    job = _registered()
    assert state_of(replace(job, start_ticks=job.start_ticks - 1)) == "lost"
    assert state_of(replace(job, boot_id="before the machine was started")) == "lost"


def test_a_pid_of_another_machine_or_container_means_nothing_here() -> None:
    job = _registered()
    of_another_machine = replace(job, host="elsewhere", boot_id="of another machine")
    for elsewhere in (of_another_machine, replace(job, pid_namespace="pid:[1]")):
        assert is_alive(elsewhere) is None and state_of(elsewhere) == "unknown"


def test_job_is_known_after_its_host_got_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    job = _registered()
    monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
    assert state_of(registry.reread(job)) == "running"
    assert state_of(replace(job, start_ticks=job.start_ticks - 1)) == "lost"
    registry.close(job, 0)
    assert state_of(registry.reread(job)) == "ended"


def test_a_worker_without_a_watcher_tells_its_end_in_the_run_directory(tmp_path: Path, state: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    job = _registered(str(run), watched=False)
    run.begin_attempt({})
    _noted(replace(job, boot_id="before"), state)
    assert state_of(registry.find(job.id)) == "lost"
    run.end_attempt("failed", {"what": "the loss is not a number", "remedy": "", "exit_code": 1, "rank": 0})
    assert (registry.find(job.id).exit_code, state_of(registry.find(job.id))) == (1, "ended")
    run.begin_attempt({})
    run.end_attempt("finished")
    assert registry.find(job.id).exit_code == 0
    run.run_json.write_text("{")
    assert state_of(registry.find(job.id)) == "lost"


@pytest.mark.parametrize("set_by_seconds", [-3600, 3600])
def test_clock_that_is_set_while_a_worker_runs_does_not_hide_its_end(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch, set_by_seconds: float
) -> None:
    run, now = RunDir(tmp_path / "run"), time.time()
    run.create("", {}, {})
    job = _registered(str(run), watched=False)
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda: now + set_by_seconds)
        run.begin_attempt({})
        run.end_attempt("finished")
    _noted(replace(job, boot_id="before"), state)
    ended = registry.find(job.id)
    assert (state_of(ended), ended.exit_code) == ("ended", 0)
    assert ended.seconds is not None and 0 <= ended.seconds < 600


def test_job_started_after_the_clock_was_set_back_is_the_newest(monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    now = time.time()
    before = _registered()
    elsewhere = _registered("runs/b")
    _noted(replace(elsewhere, boot_id="another", started=now - 5000), state)
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    monkeypatch.setattr(registry, "members_of", lambda job: [])
    after = _registered()
    for job in (before, after):
        registry.close(job, 0)
    assert [job.id for job in registry.jobs()] == [elsewhere.id, before.id, after.id]
    assert registry.find("a").id == after.id


def test_later_process_with_the_same_pid_does_not_tell_the_end_of_a_worker_that_was_killed(
    tmp_path: Path, state: Path
) -> None:
    """A container that is started again numbers its processes as before."""
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    killed = replace(_registered(str(run), watched=False), start_ticks=1)
    _noted(killed, state)
    run.begin_attempt({})
    run.end_attempt("finished")
    assert (state_of(registry.find(killed.id)), registry.find(killed.id).exit_code) == ("lost", None)


def test_later_jobs_on_a_run_do_not_change_the_state_of_an_earlier_one(tmp_path: Path, state: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    for watched in (True, False):
        job = _registered(str(run), watched=watched)
        run.begin_attempt({})
        run.metrics.write_text('{"step": 3}\n')
        run.end_attempt("stopped", {"what": "stopped", "remedy": "", "exit_code": 130, "rank": 0})
        if watched:
            registry.close(job, 130)
        _noted(replace(registry.reread(job), boot_id="before"), state)
        later = _registered(str(run))
        number = run.begin_attempt({})
        record = run.read()
        record["attempts"][-1]["pid"] += 1
        run.update(attempts=record["attempts"])
        run.metrics.write_text('{"step": 3}\n{"step": 9}\n')
        run.end_attempt("finished")
        ended = registry.reread(job)
        attempt = attempt_of(ended, run.read())
        assert attempt is not None and (attempt["attempt"], attempt["step"]) == (number - 1, 3)
        assert (state_of(ended), ended.exit_code) == ("ended", 130)
        registry.close(later, 0)


def test_lost_job_is_without_the_attempts_of_the_next_one(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    lost, later = _registered(str(run)), _registered(str(run))
    for job, step in ((lost, 3), (later, 9)):
        monkeypatch.setenv("ASCENDTUNE_JOB", job.id)
        run.begin_attempt({})
        run.metrics.write_text(f'{{"step": {step}}}\n')
        run.end_attempt("finished")
    steps = [(attempt_of(job, run.read()) or {}).get("step") for job in (lost, later)]
    assert steps == [3, 9]


def test_a_job_is_found_by_what_people_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "members_of", lambda job: [])
    first, second = _registered("runs/a"), _registered("runs/ab")
    assert (first.name, second.name) == ("a", "ab")
    assert registry.find(second.id) == registry.find("ab") == registry.find(second.id[-4:]) == second
    assert registry.find("a") == registry.find("a-") == first
    long = _registered("runs/alpaca")
    assert registry.find(long.id[:-2]) == long
    for part in ("al", "alpaca"[:5], long.id[-4:-2]):
        with pytest.raises(InputError) as caught:
            registry.find(part)
        assert caught.value.code == "unknown-job"
    with pytest.raises(InputError, match=f"did you mean '{long.id}'"):
        registry.find("al")
    third = _registered("runs/ab")
    with pytest.raises(InputError, match=r"'ab' may be any of 2 jobs: ab-.{4}, ab-"):
        registry.find("ab")
    registry.close(second, 0)
    assert registry.find("ab") == third, "of several it is the one that runs"
    registry.close(third, 0)
    assert registry.find("ab").id == registry.find("runs/ab").id == third.id, "all are over: the newest"
    with pytest.raises(InputError) as caught:
        registry.find("ab-")
    assert caught.value.code == "ambiguous-job"
    for nothing in ("", "zzzzz", "../a"):
        with pytest.raises(InputError) as caught:
            registry.find(nothing)
        assert caught.value.code == "unknown-job"


def test_name_of_several_jobs_means_a_lost_one_with_processes_that_are_left(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`jobs stop` ends the workers of a launcher that was killed."""
    lost, ended = _registered(), _registered()
    registry.close(ended, 0)
    _noted(replace(lost, pid=1, start_ticks=0), state)
    for left, meant in ((), ended), ((lost.id,), lost):
        monkeypatch.setattr(registry, "members_of", lambda job, left=left: [job.pid] if job.id in left else [])
        assert registry.find("a").id == meant.id


@pytest.mark.parametrize(("name", "begins"), [("runs/阿里 2", "阿里-2-"), ("..", "job-"), ("x" * 200, "x" * 60 + "-")])
def test_any_name_makes_an_id_that_is_a_file_name(name: str, begins: str) -> None:
    assert _registered(name).id.startswith(begins)
    assert len(list(registry.jobs())) == 1


def test_old_jobs_that_are_over_are_forgotten_and_damaged_files_ignored(state: Path) -> None:
    ended, running, elsewhere = _registered("ended"), _registered("running"), _registered("elsewhere")
    registry.close(ended, 0)
    registry.directory_of(ended.id).mkdir()
    _noted(replace(elsewhere, host="elsewhere", boot_id="of another machine"), state)
    (state / "damaged.json").write_text("{")
    (state / "older.json").write_text('{"pid": 1, "hosts": []}')
    month_ago = time.time() - MONTH_SECONDS
    for path in state.glob("*.json"):
        os.utime(path, (month_ago, month_ago))
    new = _registered("new")
    assert {job.id for job in registry.jobs()} == {running.id, elsewhere.id, new.id}
    assert len(list(state.iterdir())) == 3
    _noted(
        replace(elsewhere, host="elsewhere", boot_id="of another machine", started=time.time() - 4 * MONTH_SECONDS),
        state,
    )
    os.utime(state / f"{elsewhere.id}.json", (month_ago, month_ago))
    _registered("newer")
    assert elsewhere.id not in {job.id for job in registry.jobs()}


def test_unwritable_directory_raises_machine_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(MachineError) as caught:
        registry.register(SPEC, [], watched=True)
    assert caught.value.code == "not-a-directory"
