"""The quickstart stops, continues and teaches a skill; without training it teaches nothing."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.rundir import RunDir

pytestmark = pytest.mark.usefixtures("preloaded")

_PATIENCE_SECONDS = 600
# A request to a hub would fail. Not by HF_ENDPOINT, which a process that is forked has read already.
_NOWHERE = "http://127.0.0.1:9"
_OFFLINE = {"HTTP_PROXY": _NOWHERE, "HTTPS_PROXY": _NOWHERE, "COLUMNS": "60"}


def _scores(output: str) -> list[int]:
    return [int(score) for score in re.findall(r"^(\d+) of 50 answers are right", output, re.MULTILINE)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, new_workshop: Callable[[Path], Any]) -> Any:
    """A workshop for the tests that follow each other."""
    return new_workshop(tmp_path_factory.mktemp("quickstart"))


def test_without_training_nothing_is_learnt(workshop: Any) -> None:
    ended = workshop.run("quickstart", "optim.max_steps=1", **_OFFLINE)
    before, after = _scores(ended.out)
    assert before <= 2 and after <= 2
    assert ended.code == 1
    assert "code: too-few-right-answers" in ended.err and "Traceback" not in ended.err


def test_ctrl_c_stops_it_after_a_checkpoint(place: Any) -> None:
    run = RunDir(place.directory / "quickstart/runs/sort-letters")
    job = place.start("quickstart", **_OFFLINE)
    job.until_step(run, 2)
    job.process.send_signal(signal.SIGINT)
    ended = job.wait()
    assert ended.code == 130 and "Traceback" not in ended.err
    assert run.read()["state"] == "stopped" and run.checkpoint_steps()
    assert not place.processes()


def test_it_goes_on_teaches_the_skill_and_says_where_everything_is(place: Any) -> None:
    job = place.start("quickstart", **_OFFLINE)
    job.process.wait(_PATIENCE_SECONDS)
    ended = job.wait()
    assert ended.code == 0, ended.err
    before, after = _scores(ended.out)
    assert before <= 2 and after >= 40
    assert "resuming quickstart/runs/sort-letters from step" in ended.err
    run = place.directory / "quickstart/runs/sort-letters"
    assert all((run / name).is_file() for name in ("loss.png", "model/model.safetensors", "recipe.yaml"))
    assert "quickstart/runs/sort-letters/loss.png" in ended.out
    assert "chat quickstart/runs/sort-letters" in ended.out
    said = [line for line in ended.out.splitlines() if "ascendtune train" not in line and "/bin/" not in line]
    # A command stays one line, however narrow the terminal; everything else fits.
    assert said and max(map(len, said)) <= 60
