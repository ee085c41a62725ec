"""A run directory that is removed during training: the run reports it, stops, and does not recreate it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ascendtune.core.rundir import RunDir

if TYPE_CHECKING:
    from tests.integration.conftest import Workshop

pytestmark = pytest.mark.usefixtures("preloaded")

REMOVED = "the run directory was removed while the run trained"


@pytest.fixture
def place(workshop: Workshop, tiny_model: Path) -> Workshop:
    workshop.write_small_run(
        tiny_model,
        optim={"learning_rate": 1e-3, "max_steps": 5000},
        checkpoint={"every_steps": 50},
    )
    return workshop


@pytest.mark.parametrize("devices", [1, 2])
def test_removed_run_stops_and_stays_removed(place: Workshop, devices: int) -> None:
    run = RunDir(place.directory / "runs/run")
    job = place.start("train", "recipe.yaml", "--devices", str(devices))
    job.until_step(run, 2)
    # Renamed first: nothing that is written meanwhile keeps it from being removed.
    run.path.rename(place.directory / "removed")
    shutil.rmtree(place.directory / "removed")
    ended = job.wait()
    assert ended.code == 3, ended.err
    said = " ".join(ended.err.split())
    assert (
        REMOVED in said and "code: run-directory-removed" in said and ".writing" not in said and "Traceback" not in said
    )
    assert not run.path.exists(), sorted(run.path.rglob("*"))
    assert place.processes() == []
