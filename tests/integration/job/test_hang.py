"""Ranks that fall silent under the real launcher: told with stacks and the odd one out, ended or started again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ascendtune.core.rundir import RunDir
from ascendtune.job.hang.heartbeat import newest_beats
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.prepare import prepare_run
from python_path import python_path

pytestmark = pytest.mark.usefixtures("preloaded")


def _start(
    run: RunDir,
    how: str,
    on_hang: str,
    *,
    worker: str = "silent_worker.py",
    nproc: int = 2,
    max_restarts: int = 0,
    first_steps_seconds: int = 40,
    before_seconds: int = 40,
) -> subprocess.Popen[str]:
    driver, program = (str(Path(__file__).with_name(name)) for name in ("start_impatient_job.py", worker))
    words = (program, run, how, nproc, on_hang, max_restarts, first_steps_seconds, before_seconds)
    return subprocess.Popen(
        [sys.executable, driver, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _pids(run: RunDir) -> list[int]:
    return [beat.pid for beat in newest_beats(run.path)]


def _stacks(run: RunDir) -> dict[str, str]:
    (directory,) = run.logs.glob("stacks_*")
    return {path.name: path.read_text() for path in directory.iterdir()}


def _all_gone(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)


def test_a_hung_run_is_stopped_and_its_cause_names_the_odd_rank(run: RunDir) -> None:
    job = _start(run, "deaf", "stop", max_restarts=3)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 1, err
    assert "the run hangs: no heartbeat for" in err
    assert "rank 0: backward of step 20" in err and "rank 1: data of step 20" in err
    assert "odd rank: rank 1\n" in err
    assert err.count("error: the run hung in step 20: rank 1 differed") == 1
    record = run.read()
    assert record["state"] == "failed" and len(record["attempts"]) == 1, "who asked to stop wants no other attempt"
    assert record["exit_cause"]["kind"] == "hang" and record["exit_cause"]["odd_ranks"] == [1]
    stacks = _stacks(run)
    assert "in reads_from_a_dead_disk" in stacks["rank_1.txt"] and "in waits_for_rank_1" in stacks["rank_0.txt"]
    assert _all_gone(_pids(run))


def test_rank_that_hangs_at_startup_is_named(run: RunDir) -> None:
    # Rank 0 must be through its imports by then, also on a busy machine.
    job = _start(run, "import", "stop", before_seconds=12)
    _, err = job.communicate(timeout=120)
    assert job.returncode == 1, err
    assert "rank 0: rendezvous, before the first step for" in err
    assert "rank 1: startup, before the first step for" in err
    assert "in reads_from_a_dead_disk" in _stacks(run)["rank_1.txt"]
    assert err.count("error: the run hung before its first step: rank 1 differed") == 1
    assert run.read()["state"] == "failed" and run.read()["exit_cause"]["odd_ranks"] == [1]


def test_torchrun_that_hangs_before_its_workers_is_reported(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = "import sys, time\nif 'ascendtune.job.torchrun' in sys.orig_argv: time.sleep(60)\n"
    (tmp_path / "sitecustomize.py").write_text(hangs)
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))
    job = _start(run, "", "stop", before_seconds=4)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 1, err
    assert "rank 0: startup, before the first step for 4" in err and "no stack: " in err
    assert err.count("error: the run hung before its first step: startup\n") == 1


def test_a_warning_comes_once_and_the_run_may_continue(run: RunDir) -> None:
    job = _start(run, "wait", "warn")
    deadline = time.monotonic() + 40
    while not list(run.logs.glob("stacks_*/rank_1.txt")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    argv = [sys.executable, "-m", "ascendtune", "jobs", "stacks", str(run), "--json"]
    asked = subprocess.run(argv, capture_output=True, text=True)
    (run.path / "go_on").touch()
    _, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    assert err.count("the run hangs") == 1 and "odd rank: rank 1" in err
    assert asked.returncode == 0, asked.stderr
    seen = json.loads(asked.stdout)
    assert seen["odd"] == [1]
    assert [any(frame["function"] == "waits" for frame in rank["frames"]) for rank in seen["ranks"]] == [True, True]
    assert len(list(run.logs.glob("stacks_*"))) == 2
    assert run.read()["state"] == "finished"


def test_one_process_that_was_stopped_is_ended_with_the_same_exit_code(run: RunDir) -> None:
    job = _start(run, "stopped", "stop", nproc=1)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 1, err
    assert "rank 0: backward of step 20 for" in err and "stopped by a signal; no stack: kill -CONT" in err
    assert run.read()["exit_cause"]["kind"] == "hang" and "odd rank" not in err
    assert _all_gone(_pids(run))


@pytest.mark.parametrize("how", ["checkpoint", "evaluation"])
def test_a_long_checkpoint_or_evaluation_is_not_a_hang(run: RunDir, how: str) -> None:
    job = _start(run, how, "stop", nproc=1)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    assert "hang" not in err and not list(run.logs.glob("stacks_*"))


def test_a_training_of_two_ranks_that_hangs_continues_from_its_checkpoint(tmp_path: Path, tiny_model: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"say {n}"}, {"role": "assistant", "content": f"number {n}"}]}
        for n in range(64)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = Recipe.check(
        {
            "run_dir": str(tmp_path / "run"),
            "model": {"path": str(tiny_model)},
            "data": {"train": [{"path": str(tmp_path / "rows.jsonl")}], "packing": False},
            "optim": {"max_steps": 8},
            "precision": "fp32",
            "checkpoint": {"every_steps": 2},
            "track": {"tensorboard": False},
        }
    )
    run = prepare_run(recipe, {}).run
    assert run is not None
    # Its pace is not known after five steps: the limit of the first steps counts.
    job = _start(run, "", "restart", worker="faulty_worker.py", max_restarts=1, first_steps_seconds=6)
    _, err = job.communicate(timeout=170)
    assert job.returncode == 0, err
    assert "rank 1: data of step 6" in err and "odd rank: rank 1\n" in err
    assert "resuming from step 4" in err
    stacks = _stacks(run)
    assert "in reads_from_a_dead_disk" in stacks["rank_1.txt"]
    assert "gradient_buckets.py" in stacks["rank_0.txt"]
    assert [attempt["state"] for attempt in run.read()["attempts"]] == ["failed", "finished"]
    assert [record["step"] for record in run.read_metrics()] == list(range(1, 9))
