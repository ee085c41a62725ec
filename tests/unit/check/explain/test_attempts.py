"""Logs of several attempts of a job, as torchrun --log-dir writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.check.explain.explain import explain

_FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
_STEPS = "step 3 loss 1.7\nstep 4 loss 1.6\n"


def _write(directory: Path, attempts: list[str]) -> None:
    for number, last in enumerate(attempts):
        for rank in range(2):
            folder = directory / "none_x" / f"attempt_{number}" / str(rank)
            folder.mkdir(parents=True)
            (folder / "stdout.log").write_text(_STEPS + (last if rank == 0 else ""))


def test_failure_after_which_a_later_attempt_finished_is_told_as_such(tmp_path: Path) -> None:
    _write(tmp_path, [_FULL, "Training completed.\n"])

    explanation = explain([str(tmp_path)])

    assert explanation.headline().startswith("attempt 1 finished; attempt 0 had failed: the GPU's memory is used up")
    assert explanation.exit_code == 0 and explanation.verdict.rank == 0
    assert explanation.as_json()["attempts"] == {"failed": 0, "finished": 1}


@pytest.mark.parametrize("attempts", [["Training completed.\n", _FULL], [_FULL, _FULL], [_FULL, ""], [_FULL]])
def test_job_of_which_the_newest_attempt_did_not_finish_has_failed(tmp_path: Path, attempts: list[str]) -> None:
    _write(tmp_path, attempts)

    explanation = explain([str(tmp_path)])

    assert explanation.headline().startswith("the GPU's memory is used up") and explanation.exit_code == 1
