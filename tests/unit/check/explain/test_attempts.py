"""Logs of several attempts of a job, as torchrun --log-dir writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.check.explain.answer.json_form import as_json, fields_of
from ascendtune.check.explain.explain import Explanation, explain

_FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
_STEPS = "step 3 loss 1.7\nstep 4 loss 1.6\n"


def _write(directory: Path, attempts: list[str]) -> None:
    for number, last in enumerate(attempts):
        for rank in range(2):
            folder = directory / "none_x" / f"attempt_{number}" / str(rank)
            folder.mkdir(parents=True)
            (folder / "stdout.log").write_text(_STEPS + (last if rank == 0 else ""))


@pytest.mark.parametrize("last", ["Training completed.\n", "{'train_runtime': 777.0, 'train_loss': 1.6}\n"])
def test_failure_after_which_a_later_attempt_finished_is_told_as_such(tmp_path: Path, last: str) -> None:
    _write(tmp_path, [_FULL, last])

    explanation = explain([str(tmp_path)])

    assert explanation.headline().startswith("attempt 1 finished; attempt 0 had failed: the GPU's memory is used up")
    assert explanation.exit_code == 0 and explanation.verdict.rank == 0
    assert fields_of(explanation)["attempts"] == {"failed": 0, "finished": 1}


@pytest.mark.parametrize("attempts", [["Training completed.\n", _FULL], [_FULL, _FULL], [_FULL, ""], [_FULL]])
def test_job_of_which_the_newest_attempt_did_not_finish_has_failed(tmp_path: Path, attempts: list[str]) -> None:
    _write(tmp_path, attempts)

    explanation = explain([str(tmp_path)])

    assert explanation.headline().startswith("the GPU's memory is used up") and explanation.exit_code == 1


def test_finding_of_a_job_that_finished_later_is_not_a_failure(tmp_path: Path) -> None:
    _write(tmp_path, [_FULL, "Training completed.\n"])
    told = json.loads(as_json(explain([str(tmp_path)])))

    assert [finding["status"] for finding in told["findings"]] == ["warning"] and told["exit_code"] == 0
    assert explain([str(tmp_path / "none_x" / "attempt_0")]).findings()[0].status == "failure"


@pytest.mark.parametrize("name", ["train-attempt{}.log", "moon_retry_{}.out", "restart{}/job.log"])
def test_attempts_are_known_by_the_names_that_scripts_give(tmp_path: Path, name: str) -> None:
    for number, last in enumerate([_FULL, "Training completed.\n"], 1):
        (tmp_path / name.format(number)).parent.mkdir(exist_ok=True)
        (tmp_path / name.format(number)).write_text(_STEPS + last)

    assert fields_of(explain([str(tmp_path)]))["attempts"] == {"failed": 1, "finished": 2}


_RESTARTS = [
    "I1129 10:00:01.0 100 torch/elastic/agent/server/api.py:900] [default] Worker group FAILED. 2/3 attempts "
    "left; will restart worker group",
    "slurmstepd: error: *** JOB 812 ON n12 CANCELLED AT 2025-03-01T10:00:00 DUE TO JOB REQUEUE ***",
]


@pytest.mark.parametrize("restart", _RESTARTS)
def test_attempt_below_another_one_in_the_same_log_is_known(
    explained: Callable[..., Explanation], restart: str
) -> None:
    raised = f'Traceback (most recent call last):\n  File "/x/t.py", line 7, in t\n    t()\n{_FULL}'
    done = "step 5 loss 1.5\nTraining completed.\n"

    explanation = explained(f"{raised}{restart}\n{done}")

    assert explanation.headline().startswith("attempt 1 finished; attempt 0 had failed: ") and not explanation.exit_code
    for failed in (
        f"{raised}{restart}\n",
        f"{raised}{done}",
        f"{raised}{restart}\n{done}{raised}",
        f"{restart}\n{raised}",
    ):
        assert explained(failed).exit_code == 1
