"""A run is sent to a tracker while it trains, by a process of its own; the client is a stand-in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ascendtune.core.rundir import RunDir
from python_path import python_path

if TYPE_CHECKING:
    from tests.integration.conftest import Workshop

_CLIENT = """
import json, os, pathlib
def init(**options):
    return Run()
class Run:
    _next_step = 0
    def log(self, values, step):
        with pathlib.Path(os.environ["RECEIVED"]).open("a") as file:
            file.write(json.dumps([step, values]) + "\\n")
    def finish(self):
        pass
"""


def test_run_arrives_while_it_trains_and_a_tracker_that_is_down_stops_nothing(
    workshop: Workshop, tiny_model: Path
) -> None:
    clients, received = workshop.directory / "clients", workshop.directory / "received"
    clients.mkdir()
    (clients / "trackio.py").write_text(_CLIENT)
    (clients / "mlflow.py").write_text("raise ConnectionError('no route to host')")
    workshop.write_small_run(tiny_model, optim={"max_steps": 3}, track={"send_to": ["trackio", "mlflow"]})
    ended = workshop.run(
        "train",
        "recipe.yaml",
        PYTHONPATH=python_path(clients),
        RECEIVED=str(received),
        TRACKIO_WRITE_TOKEN="topsecret1234",
    )
    run = RunDir(workshop.directory / "runs/run")
    assert ended.code == 0 and run.read()["state"] == "finished", ended.err
    said = " ".join(ended.err.split())
    assert "send runs/run --to mlflow" in said and "--to trackio" not in said and workshop.processes() == []
    lines = [json.loads(line) for line in received.read_text().splitlines()]
    assert [step for step, _ in lines] == [1, 2, 3] and "train/loss" in lines[0][1]
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"topsecret1234" in path.read_bytes()], "no key in the run directory"
