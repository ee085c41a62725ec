"""`ascendtune align nan`: runs that cannot be repeated, and what is said of a repetition that failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascendtune.cli.align_nan import replay_failed, require_failed
from ascendtune.core.errors import NoVerdict
from ascendtune.core.rundir import RunDir

RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "finished": ({"state": "finished", "exit_cause": None}, "run-finished"),
    "failed at load": (
        {"state": "failed", "exit_cause": {"code": "weights-not-finite", "what": "it is odd", "remedy": "copy it"}},
        "no-step-to-repeat",
    ),
}


@pytest.mark.parametrize(("record", "code"), RUNS.values(), ids=RUNS)
def test_run_without_a_bad_step_is_not_repeated(tmp_path: Path, record: dict[str, Any], code: str) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"attempts": [], **record}))
    with pytest.raises(NoVerdict) as caught:
        require_failed(RunDir(tmp_path))
    assert caught.value.code == code


def test_run_whose_loss_was_nan_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"state": "failed", "exit_cause": {"code": "loss-not-finite"}}))
    require_failed(RunDir(tmp_path))


def test_failed_repetition_shows_its_cause_and_not_its_code(tmp_path: Path) -> None:
    stderr = "data: 3 rows\nerror: no such model\n   do: look\n code: no-such-model\n"
    of_record = replay_failed(RunDir(tmp_path), {"what": "out of memory", "remedy": "free some"}, 1, stderr)
    assert (of_record.what, of_record.remedy) == ("the run could not be repeated: out of memory", "free some")
    assert replay_failed(RunDir(tmp_path), {}, 2, stderr).what == "the run could not be repeated: no such model"
    assert replay_failed(RunDir(tmp_path), {}, 2, "").what == "the run could not be repeated: exit code 2"
