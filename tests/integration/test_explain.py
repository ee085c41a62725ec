"""`ascendtune explain RUN` on what real torchrun and real processes leave behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ascendtune.check.explain.answer.report import as_text
from ascendtune.check.explain.explain import explain
from ascendtune.core import language
from ascendtune.core.rundir import RunDir

pytestmark = pytest.mark.usefixtures("preloaded")

_JOBS = Path(__file__).parent / "job"


def _job(directory: Path, how: str) -> tuple[RunDir, int, str]:
    run = RunDir(directory / "run")
    run.create("", {}, {})
    argv = [sys.executable, str(_JOBS / "start_job.py"), str(run), how, str(_JOBS / "pretend_worker.py"), "2", "0"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    return run, ended.returncode, ended.stdout + ended.stderr


def test_explain_finds_nothing_in_a_job_that_succeeded(tmp_path: Path) -> None:
    run, code, said = _job(tmp_path, "finish")
    (tmp_path / "said.log").write_text(said)

    assert code == 0, said
    assert explain([str(run), str(tmp_path / "said.log")]).is_healthy
    assert explain([str(log) for log in run.logs.glob("*.log")]).is_healthy


@pytest.mark.parametrize(("how", "entry"), [("die", "sigkill"), ("fail", "run")])
def test_names_the_rank_that_failed_first(tmp_path: Path, how: str, entry: str) -> None:
    run, code, said = _job(tmp_path, how)

    explanation = explain([str(run)])

    assert code == 1, said
    assert explanation.findings()[0].code == entry
    assert explanation.verdict.rank == 1
    assert explanation.is_here
    with language.using("zh"):
        assert "rank 1" in " ".join(as_text(explanation, columns=80, paint=lambda text, _: text).split())
