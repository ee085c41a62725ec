"""`runs clean`: what it removes, and what it keeps under all circumstances."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ascendtune.core.claim import Claim
from ascendtune.core.rundir import RunDir


def make_run(path: Path, state: str, steps: list[int], best: int | None = None, **facts: Any) -> RunDir:
    run = RunDir(path)
    run.create(f"name: {path.name}\n", {}, facts)
    for step in steps:
        run.checkpoint(step).mkdir()
        (run.checkpoint(step) / "tensors").write_bytes(b"x" * 40_000)
    if best is not None:
        lines = ({"step": step, "loss": 1.0 if step == best else 2.0} for step in steps)
        run.evaluations.write_text("".join(json.dumps(each) + "\n" for each in lines))
    run.model.mkdir()
    (run.model / "weights").write_bytes(b"x" * 9000)
    if state != "created":
        run.begin_attempt({})
    if state not in ("created", "running"):
        run.end_attempt(state)  # type: ignore[arg-type]
    return run


def test_kept_are_the_newest_the_best_and_what_another_run_resumes_from(in_process: Any, tmp_path: Path) -> None:
    done = make_run(tmp_path / "runs/done", "finished", [10, 20, 30, 40], best=20)
    stopped = make_run(tmp_path / "runs/stopped", "stopped", [5, 10, 15])
    running = make_run(tmp_path / "runs/running", "running", [1, 2, 3])
    make_run(tmp_path / "runs/from-done", "stopped", [], resume_from=str(done.checkpoint(10)))
    make_run(tmp_path / "runs/was-from-done", "finished", [90], resume_from=str(done.checkpoint(30)))
    shown = in_process("runs", "clean", COLUMNS="200")
    assert shown.returncode == 0 and "nothing was removed: add --yes" in shown.stderr
    row = next(line for line in shown.stdout.splitlines() if line.startswith("runs/done"))
    assert "step_30" in row and not any(f"step_{step}" in row for step in (10, 20, 40))
    assert done.checkpoint_steps() == [10, 20, 30, 40]
    cleaned = in_process("runs", "clean", "--yes")
    assert cleaned.returncode == 0 and cleaned.stderr.startswith("removed ")
    assert done.checkpoint_steps() == [10, 20, 40] and stopped.checkpoint_steps() == [15]
    assert running.checkpoint_steps() == [1, 2, 3]
    assert all((each.model / "weights").stat().st_size == 9000 for each in (done, stopped, running))
    assert "nothing to remove" in in_process("runs", "clean", "--yes").stdout


def test_a_narrow_terminal_shows_what_would_be_removed(
    in_process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "runs/a-run-with-a-name-of-many-words", "finished", [10, 20])
    monkeypatch.setattr("ascendtune.cli.terminal.width", lambda stream: 60)
    header, row = in_process("runs", "clean").stdout.splitlines()
    assert "to remove" in header and "step_10" in row and max(len(header), len(row)) <= 60


def test_a_checkpoint_that_a_run_elsewhere_resumes_from_is_kept(
    in_process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = make_run(tmp_path / "runs/done", "finished", [10, 20, 30, 40, 50])
    make_run(tmp_path / "runs/beside", "failed", [], resume_from=str(done.checkpoint(10)))
    other = make_run(tmp_path / "other/of-a-job", "stopped", [], resume_from=str(done.checkpoint(20)))
    monkeypatch.setattr("ascendtune.job.registry.jobs", lambda: iter([SimpleNamespace(run_dir=other.path)]))
    assert in_process("runs", "clean", "done", "--yes").returncode == 0
    assert done.checkpoint_steps() == [10, 20, 50]
    # Its next start was ended before its first step: it is still recorded as finished.
    done.update(resume_from=str(done.checkpoint(20)))
    assert in_process("runs", "clean", "--all", "--yes").returncode == 0
    assert done.checkpoint_steps() == [10, 20]


def test_all_takes_the_checkpoints_of_finished_runs_only(in_process: Any, tmp_path: Path) -> None:
    done = make_run(tmp_path / "runs/done", "finished", [10, 20], best=10)
    without_model = make_run(tmp_path / "runs/without-model", "finished", [10, 20])
    shutil.rmtree(without_model.model)
    failed = make_run(tmp_path / "runs/failed", "failed", [10, 20])
    (found,) = json.loads(in_process("runs", "clean", done, "--all", "--json").stdout)
    assert [Path(each).name for each in found["removable"]] == ["step_10", "step_20"] and found["removed"] == []
    assert found["removable_bytes"] == found["checkpoints_bytes"] - _blocks(done.checkpoints) > 80_000
    assert in_process("runs", "clean", "--all", "--yes").returncode == 0
    assert done.checkpoint_steps() == [] and without_model.checkpoint_steps() == [20]
    assert failed.checkpoint_steps() == [20]


def _blocks(path: Path) -> int:
    return path.lstat().st_blocks * 512


def test_copies_and_leftovers_are_removed_and_links_are_not_followed(in_process: Any, tmp_path: Path) -> None:
    run, elsewhere = make_run(tmp_path / "runs/a", "finished", [10]), tmp_path / "elsewhere"
    (elsewhere / "step_5").mkdir(parents=True)
    (elsewhere / "step_5/tensors").write_bytes(b"x")
    run.checkpoint(5).symlink_to(elsewhere / "step_5")
    for name in ("exported/step_10-0123", ".model.77", "checkpoints/.step_3.removing"):
        (run.path / name).mkdir(parents=True)
        (run.path / name / "file").write_bytes(b"x" * 5000)
    assert in_process("runs", "clean", "a", "--yes").returncode == 0
    assert run.checkpoint_steps() == [5, 10] and (elsewhere / "step_5/tensors").exists()
    assert [each.name for each in run.checkpoints.iterdir() if each.name.startswith(".")] == []
    assert [*(run.path / "exported").iterdir()] == [] and not (run.path / ".model.77").exists()


def test_runs_that_cannot_be_read_are_not_called_absent(in_process: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs/a", "stopped", [10, 20])
    run.run_json.write_text("{")
    shown = in_process("runs", "clean", "--yes")
    assert shown.stdout == "" and "left alone: runs/a: run.json is damaged" in shown.stderr
    assert shown.returncode == 1
    shutil.rmtree(run.path)
    assert in_process("runs", "clean").stdout == "no runs in runs\n"


def test_a_run_that_another_start_has_claimed_is_left_alone(in_process: Any, tmp_path: Path) -> None:
    run, other = (make_run(tmp_path / "runs" / name, "stopped", [10, 20]) for name in ("a", "b"))
    claim = Claim.take(run.path)
    try:
        cleaned = in_process("runs", "clean", "--yes")
    finally:
        claim.release()
    assert run.checkpoint_steps() == [10, 20] and other.checkpoint_steps() == [20]
    assert "left alone: runs/a" in cleaned.stderr and cleaned.returncode == 1


def test_a_full_disk_is_freed(in_process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "runs/a", "stopped", [10, 20])

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    assert in_process("runs", "clean", "--yes").stderr.startswith("removed ")
    assert run.checkpoint_steps() == [20]
    monkeypatch.undo()
    Claim.take(run.path).release()


@pytest.mark.parametrize("seed", range(8))
def test_a_kill_at_any_file_leaves_only_complete_checkpoints(
    seed: int, in_process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, unlink = make_run(tmp_path / "runs/a", "stopped", [10, 20, 30]), os.unlink
    for step in (10, 20, 30):
        for number in range(4):
            (run.checkpoint(step) / f"more-{number}").write_bytes(b"x")
    left = [random.Random(seed).randrange(10)]

    def counted(path: Any, **options: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)
        unlink(path, **options)

    child = os.fork()
    if not child:
        monkeypatch.setattr(os, "unlink", counted)
        in_process("runs", "clean", "--yes")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert 30 in run.checkpoint_steps()
    assert all(len([*run.checkpoint(step).iterdir()]) == 5 for step in run.checkpoint_steps())
    assert in_process("runs", "clean", "--yes").returncode == 0
    assert [each.name for each in run.checkpoints.iterdir()] == ["step_30"]
