"""Looking at a training from outside changes nothing in it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from ascendtune.core.rundir import RunDir
from ascendtune.job.hang import stacks
from ascendtune.job.hang.heartbeat import newest_beats
from preloaded import Preloaded

STEPS = 200


@pytest.fixture
def recipe(workshop: Any, tiny_model: Path) -> str:
    rows = [
        {"messages": [{"role": "user", "content": f"say {n}"}, {"role": "assistant", "content": f"number {n}"}]}
        for n in range(64)
    ]
    (workshop.directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(
        workshop.write(
            "recipe.yaml",
            {
                "model": {"path": str(tiny_model)},
                "data": {"train": [{"path": "rows.jsonl"}], "packing": False},
                "optim": {"max_steps": STEPS, "learning_rate": 1e-3},
                "precision": "fp32",
                "checkpoint": {"every_steps": 1000},
                "track": {"tensorboard": False},
            },
        )
    )


def test_stacks_are_taken_from_a_training_and_not_a_bit_changes(
    workshop: Any, recipe: str, _libraries: Preloaded
) -> None:
    with _libraries.children():
        alone = workshop.run("train", recipe, "name=alone")
    assert alone.code == 0, alone.err
    run = RunDir(workshop.directory / "runs" / "watched")
    job = workshop.start("train", recipe, "name=watched")
    job.until_step(run, 5)
    (watcher,) = [
        each
        for each in psutil.Process(job.process.pid).children()
        if "ascendtune.job.hang.watcher_process" in each.cmdline()
    ]
    taken = []
    while job.process.poll() is None:
        # In between, and until the very end, also without looking whether the process is ready for it.
        os.kill(job.process.pid, signal.SIGUSR1)
        taken += stacks.collect(run.path, newest_beats(run.path))[1]
    ended = job.wait()
    assert ended.code == 0, ended.err
    assert taken[0].beat.pid == job.process.pid
    # At the first signal: at the second one its frames would be read without the interpreter's lock.
    assert taken[0].source != "faulthandler"
    assert any("ascendtune/train/loop.py" in each.file.read_text() for each in taken)
    assert all(each.frames[-1].function == "_run_module_as_main" for each in taken[:3])

    other = RunDir(workshop.directory / "runs" / "alone")
    assert [line["loss"] for line in run.read_metrics()] == [line["loss"] for line in other.read_metrics()]
    weights = [(each.model / "model.safetensors").read_bytes() for each in (run, other)]
    assert weights[0] == weights[1]
    watcher.wait(10)

    with _libraries.children():
        asked = workshop.run("jobs", "stacks", "runs/watched")
    assert asked.code == 2 and "no process of this run is alive on this machine" in asked.err
