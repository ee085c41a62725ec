"""`ascendtune jobs`: what is printed of records, logs and processes. How processes end is tested with real jobs."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from ascendtune.cli.main import main
from ascendtune.core import procfs
from ascendtune.core.rundir import RunDir
from ascendtune.job import registry
from ascendtune.job.record import Job
from ascendtune.job.spec import JobSpec
from bad_files import BAD_FILES

Called = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "ascendtune" / "jobs"


@pytest.fixture
def called(capsys: pytest.CaptureFixture[str]) -> Called:
    """Exit code, stdout and stderr of `ascendtune jobs …`."""

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["jobs", *words])
        said = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, said.out, said.err

    return call


def _job(tmp_path: Path, name: str, **changes: Any) -> Job:
    """A job that says it is this process, with a run of three steps in which rank 1 failed."""
    run = RunDir(tmp_path / name)
    if not run.run_json.exists():
        run.create("", {}, {})
    spec = JobSpec(("train.py",), run.path, nproc=2, kind="npu", device_ids=("0", "3"))
    job = replace(registry.register(spec, ["torchrun", "train.py"], watched=True), **changes)
    registry._path(job.id).write_text(json.dumps(job.as_json()))
    return job


def test_list_without_jobs_says_so(called: Called) -> None:
    assert called("list") == (0, "no job runs\n", "")
    assert called("list", "--json") == (0, "[]\n", "")


def test_user_without_a_home_directory_is_told_what_to_set(called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container runs with a number that /etc/passwd does not have."""
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    code, _, said = called("list")
    assert code == 3 and "code: path-missing" in said and "export HOME=" in said


def test_list_shows_what_runs_and_with_all_the_rest(called: Called, tmp_path: Path) -> None:
    running, elsewhere, lost = (
        _job(tmp_path, "a"),
        _job(tmp_path, "b", host="far", boot_id="of another machine", hosts=("far", "near")),
        _job(tmp_path, "c", start_ticks=1),
    )
    registry.close(_job(tmp_path, "d"), 1)
    run = RunDir(tmp_path / "a")
    run.begin_attempt({})
    run.metrics.write_text('{"step": 1234}\n')
    lines = called("list")[1].splitlines()
    assert lines[0].split() == ["job", "state", "devices", "hosts", "started", "time", "left", "step"]
    assert len(lines) == 3
    assert lines[1].split()[:4] == [running.id, "running", "npu", "0,3"] and lines[1].split()[-1] == "1,234"
    assert lines[2].split()[:5] == [elsewhere.id, "unknown", "npu", "0,3", "far,near"]
    lines = called("list", "--all")[1].splitlines()
    assert lines[3].split()[:2] == [lost.id, "lost"] and "failed (1)" in lines[4]
    told = json.loads(called("list", "--all", "--json")[1])
    assert [each["state"] for each in told] == ["running", "unknown", "lost", "failed"]
    assert told[0]["pid"] == os.getpid() and told[3]["exit_code"] == 1


def test_steps_and_time_that_are_left_are_those_of_the_newest_records(called: Called, tmp_path: Path) -> None:
    job = _job(tmp_path, "a")
    run = RunDir(job.run_dir)
    run.begin_attempt({})
    run.update(resolved={"total_steps": 1000})
    # Half an hour of compiling before the records of the last 32 steps, each of which tells of two.
    times = [1800.0, *[4.0] * 32]
    records = [{"step": 2 * number, "seconds": {"step": seconds}} for number, seconds in enumerate(times, 1)]
    run.metrics.write_text("".join(f"{json.dumps(each)}\n" for each in records))
    assert called("list")[1].splitlines()[1].split()[-2:] == ["31:08", "66/1,000"]
    assert "step 66/1,000" in called("show", job.id)[1] and "31:08 left" in called("show", job.id)[1]
    told = json.loads(called("list", "--json")[1])[0]
    assert (told["step"], told["total_steps"], told["seconds_left"]) == (66, 1000, 2 * 934)
    registry.close(job, 0)
    assert json.loads(called("show", job.id, "--json")[1])["seconds_left"] is None
    run.update(resolved={"total_steps": "many"})
    assert called("list", "--all")[1].splitlines()[1].split()[-2:] == ["-", "66"]


@pytest.mark.parametrize(("columns", "shown"), [(60, "job state devices time left step"), (30, "job state")])
def test_an_id_is_whole_on_a_narrow_terminal(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int, shown: str
) -> None:
    job = _job(tmp_path, "alpaca-qwen-lora")
    monkeypatch.setattr("ascendtune.cli.terminal.width", lambda stream: columns)
    header, line = called("list")[1].splitlines()
    assert header.split() == shown.split() and line.split()[:2] == [job.id, "running"]
    assert len(line) <= columns or columns == 30


def test_show_tells_why_a_job_ended(called: Called, tmp_path: Path) -> None:
    job = _job(tmp_path, "a")
    run = RunDir(job.run_dir)
    run.update(argv=["ascendtune", "train", "my recipe.yaml", "seed=7"])
    run.begin_attempt({})
    run.metrics.write_text('{"step": 7, "loss": 0.5}\n')
    (run.logs / "rank_1.log").write_text("x" * 2048)
    run.end_attempt("failed", {"what": "the loss is not a number", "remedy": "lower it", "exit_code": 1, "rank": 1})
    registry.close(job, 1)
    code, out, _ = called("show", job.id)
    assert code == 0 and out.startswith(f"{job.id}: failed (1), ")
    for words in (
        "ascendtune train 'my recipe.yaml' seed=7",
        "npu 0,3",
        "run failed, step 7, loss 0.5000",
        "the loss is not a number",
        "lower it",
        "2.0 KiB",
    ):
        assert words in out, words
    run.begin_attempt({})
    run.end_attempt("failed", {"what": "another trouble", "remedy": "", "exit_code": 1, "rank": 0})
    assert "trouble" not in called("show", job.id)[1], "what a later job in the same directory died of"


def test_show_lists_the_processes_with_their_ranks(called: Called, tmp_path: Path) -> None:
    job = _job(tmp_path, "a", kind="cpu")
    env = {"ASCENDTUNE_JOB": job.id, "RANK": "1"}
    with subprocess.Popen(["sleep", "60"], env=env, start_new_session=True) as worker:
        told = json.loads(called("show", job.id, "--json")[1])
        worker.kill()
    (found,) = [each for each in told["processes"] if each["pid"] == worker.pid]
    assert (found["rank"], found["command"], found["devices"]) == (1, "sleep 60", {})
    assert found["memory_used_bytes"] > 0 and os.getpid() in {each["pid"] for each in told["processes"]}


def test_logs_have_the_rank_in_front_once(called: Called, tmp_path: Path) -> None:
    (tmp_path / "a" / "log").mkdir(parents=True)
    (tmp_path / "a" / "log" / "rank_1.log").write_text("of an earlier attempt\n")
    job = _job(tmp_path, "a")
    with (job.logs / "rank_1.log").open("a") as file:
        file.write("[rank 1] warning: said by a worker of ours\nprinted\n")
    code, out, err = called("logs", job.id)
    assert (code, out) == (0, "[rank 1] warning: said by a worker of ours\n[rank 1] printed\n")
    assert err.startswith(f"rank 0 writes to the terminal where {job.id} was started")
    assert called("logs", job.id, "--rank", "1", "--lines", "1") == (0, "[rank 1] printed\n", "")


def test_logs_of_a_training_in_the_background_are_rank_0s_too(called: Called, tmp_path: Path) -> None:
    (tmp_path / "a" / "log").mkdir(parents=True)
    (tmp_path / "a" / "log" / "job.log").touch()
    job = _job(tmp_path, "a", session=os.getpid())
    (job.logs / "job.log").write_text("step 1\n")
    (job.logs / "rank_1.log").write_text("printed\n")
    assert called("logs", job.id) == (0, "step 1\n[rank 1] printed\n", "")
    assert called("logs", job.id, "--rank", "0") == (0, "step 1\n", "")


def test_logs_that_are_not_there_are_told_as_that(called: Called, tmp_path: Path) -> None:
    job = _job(tmp_path, "a")
    code, out, err = called("logs", job.id, "--rank", "9")
    assert (code, out, err) == (
        2,
        "",
        f"error: {job.id} has no rank 9\n   do: name one from 0 to 1\n code: unknown-rank\n",
    )
    gone = f"warning: no log of rank 1 is in {job.logs}: it was removed, or never written\n"
    assert called("logs", job.id, "--rank", "1") == (1, "", gone)
    assert called("logs", job.id) == (1, "", f"rank 0 writes to the terminal where {job.id} was started\n{gone}")
    other = _job(tmp_path, "a", is_foreign=True)
    assert called("logs", other.id) == (1, "", gone.replace("rank 1", "ranks 0, 1"))
    registry.close(other, 0)
    assert called("logs", other.id, "-f", "--rank", "0") == (1, "", gone.replace("rank 1", "rank 0"))


def test_stop_on_a_terminal_asks_first(called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("n\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    with subprocess.Popen(["sleep", "60"]) as innocent:
        stat = procfs.stat_of(innocent.pid)
        assert stat is not None
        job = _job(tmp_path, "a", pid=stat.pid, start_ticks=stat.start_ticks, kind="cpu")
        code, out, _ = called("stop", job.id)
        assert code == 1 and f"{job.id}: running, 1 process, " in out and "sleep 60" in out
        assert out.endswith("Stop it? [y/N]: ") and innocent.poll() is None
        innocent.kill()
    innocent.wait()
    code, out, _ = called("stop", job.id)
    assert (code, out) == (0, f"{job.id} does not run: lost\n")


def test_an_unknown_job_is_an_error_with_a_remedy(called: Called) -> None:
    for words in (["show", "x"], ["logs", "x"], ["stop", "x"]):
        code, _, err = called(*words)
        assert (
            code == 2
            and err
            == "error: there is no job 'x'\n   do: `ascendtune jobs list --all` shows them\n code: unknown-job\n"
        )


def test_a_shell_completes_ids(ascendtune: Any, tmp_path: Path) -> None:
    job = _job(tmp_path, "alpaca")
    env = {"_ASCENDTUNE_COMPLETE": "complete_bash", "COMP_WORDS": "ascendtune jobs stop al", "COMP_CWORD": "3"}
    assert ascendtune(**env).stdout.split() == [job.id]


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_of_the_registry_is_named_and_the_others_are_listed(
    called: Called, caplog: pytest.LogCaptureFixture, tmp_path: Path, state: Path, kind: str
) -> None:
    job = _job(tmp_path, "fine")
    BAD_FILES[kind](state / "bad-aaaa.json")
    began = time.monotonic()
    code, out, _ = called("list")
    assert time.monotonic() - began < 30
    assert code == 0 and job.id in out
    (warning,) = caplog.messages
    assert "bad-aaaa.json" in warning


@pytest.mark.parametrize(
    "change",
    [
        {"pid": "1"},
        {"pid": -1},
        {"pid": 10**400},
        {"started": "now"},
        {"started": 1e300},
        {"hosts": 3},
        {"hosts": [1]},
        {"argv": [["a"]]},
        {"run_dir": 3},
        {"log_sizes": []},
        {"ended": []},
        {"id": "another-aaaa"},
        {"nproc": True, "exit_code": "x"},
    ],
)
def test_a_record_with_a_value_of_another_kind_is_named(
    called: Called, caplog: pytest.LogCaptureFixture, tmp_path: Path, state: Path, change: dict[str, Any]
) -> None:
    fine, odd = _job(tmp_path, "fine"), _job(tmp_path, "odd")
    path = state / f"{odd.id}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    for words in (("list",), ("list", "--all", "--json")):
        caplog.clear()
        code, out, _ = called(*words)
        assert code == 0 and fine.id in out and odd.id not in out
        (warning,) = caplog.messages
        assert path.name in warning


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: it gives a file to another user")
def test_a_record_of_another_user_is_not_believed(
    called: Called, caplog: pytest.LogCaptureFixture, tmp_path: Path, state: Path
) -> None:
    job = _job(tmp_path, "theirs")
    os.chown(state / f"{job.id}.json", 65534, 65534)
    code, out, _ = called("list")
    assert code == 0 and job.id not in out and "it belongs to another user" in caplog.messages[0]


def test_a_run_of_another_form_hides_no_job(called: Called, tmp_path: Path) -> None:
    job = _job(tmp_path, "fine", watched=False, pid=2**22 + 1)
    for record in ({"attempts": [{"pid": job.pid, "started": "x"}]}, {"attempts": [{"pid": job.pid, "ended": []}]}):
        (tmp_path / "fine" / "run.json").write_text(json.dumps({"state": "failed", "exit_cause": "x", **record}))
        code, out, _ = called("list", "--all")
        assert code == 0 and job.id in out


def test_times_of_jobs_do_not_follow_a_clock_that_was_set(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = time.time() + 7 * 24 * 3600
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda: ahead)
        _job(tmp_path, "a")
        ended, by_file = _job(tmp_path, "b"), _job(tmp_path, "c", seconds=None)
        RunDir(tmp_path / "b").begin_attempt({})
        RunDir(tmp_path / "b").metrics.write_text('{"step": 5}\n')
    registry.close(ended, 0)
    registry._path(by_file.id).write_text(json.dumps({**by_file.as_json(), "ended": time.time(), "exit_code": 0}))
    listed = called("list", "--all")[1]
    assert re.search(r"\s-\d", listed) is None, "no time is negative"
    columns = {line.split()[0][0]: line.split() for line in listed.splitlines()[1:]}
    assert columns["b"][-1] == "5" and columns["c"][-2:] == ["-", "-"]


def _beat(run: RunDir, silent_seconds: float, phase: str = "forward") -> None:
    me = procfs.stat_of(os.getpid())
    assert me is not None
    run.heartbeats.mkdir(exist_ok=True)
    beat = {"phase": phase, "step": 7, "monotonic": time.monotonic() - silent_seconds, "attempt": 1}
    place = {"pid": os.getpid(), "start_ticks": me.start_ticks, "host": socket.gethostname()}
    place |= {"boot_id": procfs.boot_id(), "pid_namespace": procfs.pid_namespace()}
    (run.heartbeats / "rank_0.json").write_text(json.dumps({**beat, **place}))


def test_silence_of_a_running_job_is_shown_long_before_the_hang_limit(called: Called, tmp_path: Path) -> None:
    job = _job(tmp_path, "a")
    run = RunDir(job.run_dir)
    run.metrics.write_text('{"step": 5, "seconds": {"step": 900}}\n{"step": 7, "seconds": {"step": 2.5}}\n')
    _beat(run, 5)
    assert "silent" not in called("list")[1]
    _beat(run, 30)
    assert "running, silent for " in called("show", job.id)[1]
    assert "(usual step 1.2 s)" in called("list")[1]
    assert json.loads(called("list", "--json")[1])[0]["silent_seconds"] > 29
    _beat(run, 30, phase="checkpoint")
    assert json.loads(called("list", "--json")[1])[0]["silent_seconds"] is None
    run.metrics.write_text('{"step": 500, "seconds": {"step": 625}}\n')
    _beat(run, 30)
    assert "(usual step 1.2 s)" in called("list")[1]
    run.metrics.unlink()
    _beat(run, 30)
    assert "silent" not in called("list")[1]
    _beat(run, 90)
    assert "silent" in called("list")[1] and "usual" not in called("list")[1]


def test_directory_with_the_name_of_a_job_does_not_hide_the_job(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _job(tmp_path, "runs/tick")
    (tmp_path / "tick").mkdir()
    code, _, said = called("stacks", "tick")
    assert code == 2 and "code: run-not-alive" in said and "runs/tick" in said


def test_stop_of_a_name_whose_jobs_are_all_over_says_so_of_the_newest(called: Called, tmp_path: Path) -> None:
    jobs = [_job(tmp_path, "a", start_ticks=1, ended=time.time(), exit_code=0) for _ in range(3)]
    code, said, _ = called("stop", "a")
    assert code == 0 and said.startswith(f"{jobs[-1].id} does not run: finished since")


@pytest.mark.parametrize(("loss", "shown", "in_json"), [("NaN", "loss nan", "NaN"), ('"x"', "", None)])
def test_loss_that_is_not_a_finite_number_is_shown_and_is_valid_json(
    called: Called, tmp_path: Path, loss: str, shown: str, in_json: str | None
) -> None:
    job = _job(tmp_path, "a")
    run = RunDir(tmp_path / "a")
    run.begin_attempt({})
    run.metrics.write_text(f'{{"step": 2, "loss": {loss}}}\n')
    assert shown in called("show", job.id)[1]

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads(called("show", job.id, "--json")[1], parse_constant=refuse)["loss"] == in_json


def test_show_wraps_the_hosts_of_a_job_on_a_narrow_terminal(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tuple(f"node{number}.cluster" for number in range(9))
    job = _job(tmp_path, "a", hosts=hosts)
    monkeypatch.setattr("ascendtune.cli.jobs.width", lambda stream: 50)
    lines = called("show", job.id)[1].splitlines()
    shown = [line for line in lines if ".cluster" in line]
    assert len(shown) > 2 and max(map(len, shown)) <= 50
    assert re.findall(r"node\d", " ".join(shown)) == [each.removesuffix(".cluster") for each in hosts]


def test_stop_answers_programs_and_does_not_ask(called: Called, tmp_path: Path) -> None:
    job = _job(tmp_path, "a", start_ticks=1)
    registry.close(job, 1)
    code, out, _ = called("stop", job.id, "--json")
    told = json.loads(out)
    assert code == 0 and (told["job"], told["state"], told["processes"]) == (job.id, "failed", [])
    assert (told["survivors"], told["memory_holders"], told["was_killed"]) == ([], [], False)
