"""The commands around a run, on a run that the command line made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("preloaded")

_NOTES = [
    {"prompt": f"What is {number} plus one?", "completion": f"{number} plus one is {number + 1}."}
    for number in range(40)
]


def ascendtune(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ascendtune", *map(str, words)]
    return subprocess.run(argv, cwd=cwd, text=True, capture_output=True, env={**os.environ, **environment}, timeout=240)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A directory with runs/notes, finished after five steps, evaluated and checkpointed on the way."""
    place = tmp_path_factory.mktemp("place")
    (place / "notes.jsonl").write_text("".join(json.dumps(note) + "\n" for note in _NOTES))
    (place / "recipe.yaml").write_text(
        f"name: notes\nmodel: {{path: {tiny_model}}}\n"
        "data: {train: notes.jsonl, eval_fraction: 0.1, max_length: 64}\n"
        "optim: {max_steps: 5, learning_rate: 1e-3}\nprecision: fp32\n"
        "eval: {every_steps: 5}\ncheckpoint: {every_steps: 2}\n"
    )
    home = {"XDG_CACHE_HOME": str(place / "cache"), "XDG_STATE_HOME": str(place / "state")}
    done = ascendtune("train", "recipe.yaml", cwd=place, **home)
    assert done.returncode == 0, done.stderr
    assert "data: 40 rows read, 36 used" in done.stderr and "step 5/5" in done.stderr
    return place


def test_a_run_directory_holds_what_the_contract_says(place: Path) -> None:
    run = place / "runs" / "notes"
    names = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    assert names == {
        "recipe.yaml", "origins.json", "run.json", "data.json", "metrics.jsonl", "eval.jsonl", "heartbeat", "log",
        "checkpoints", "model", "start_weights.json", "loss.png", "loss.svg", "tensorboard",
    }  # fmt: skip
    record = json.loads((run / "run.json").read_text())
    assert record["state"] == "finished" and record["schema_version"] == 1
    assert record["versions"]["torch"] and record["resolved"]["precision"]["compute"] == "fp32"
    origins = json.loads((run / "origins.json").read_text())
    assert origins["optim.max_steps"] == "recipe.yaml:4" and origins["seed"] == "default"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    expected = {
        "attempt", "step", "loss", "grad_norm", "learning_rate", "tokens_seen", "tokens_per_second", "mfu",
        "memory_peak_bytes", "batch_hash", "seconds",
    }  # fmt: skip
    assert expected <= lines[0].keys()
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"step_4", "step_5"}
    beat = json.loads((run / "heartbeat" / "rank_0.json").read_text())
    assert beat["step"] == 5


def test_show_tells_what_was_read_chosen_and_written(place: Path) -> None:
    shown = ascendtune("runs", "show", "runs/notes", cwd=place)
    assert shown.returncode == 0, shown.stderr
    for words in ("runs/notes: finished", "40 rows read", "train data", "eval data", "step_4, step_5"):
        assert words in shown.stdout, words
    facts = json.loads(ascendtune("runs", "show", "runs/notes", "--json", cwd=place).stdout)
    assert facts["data_report"]["train"]["rows_read"] == 40
    assert facts["last_metrics"]["step"] == 5 and facts["last_evaluation"]["step"] == 5


def test_a_finished_run_is_not_trained_again_but_named_anew(place: Path) -> None:
    home = {"XDG_CACHE_HOME": str(place / "cache"), "XDG_STATE_HOME": str(place / "state")}
    again = ascendtune("train", "recipe.yaml", "optim.learning_rate=2e-3", cwd=place, **home)
    assert again.returncode == 0, again.stderr
    assert "starting runs/notes-2: runs/notes has finished" in again.stderr
    listed = json.loads(ascendtune("runs", "list", "runs", "--json", cwd=place).stdout)
    assert [run["name"] for run in listed] == ["notes", "notes-2"]
    compared = ascendtune("runs", "compare", "runs/notes", "runs/notes-2", cwd=place).stdout
    assert "optim.learning_rate" in compared and "data: the same" in compared


def test_a_finished_run_is_left_alone_by_the_worker_too(place: Path) -> None:
    run = place / "runs" / "notes"
    before = (run / "metrics.jsonl").read_bytes()
    argv = [sys.executable, "-m", "ascendtune.train.worker", str(run)]
    again = subprocess.run(argv, cwd=place, text=True, capture_output=True, timeout=240)
    assert again.returncode == 0 and "has finished" in again.stderr
    assert (run / "metrics.jsonl").read_bytes() == before
    assert json.loads((run / "run.json").read_text())["attempts"][-1]["attempt"] == 1


def test_a_directory_that_is_not_a_run_is_not_written_into(place: Path) -> None:
    foreign = place / "runs" / "papers"
    foreign.mkdir()
    (foreign / "important.txt").write_text("mine")
    home = {"XDG_CACHE_HOME": str(place / "cache"), "XDG_STATE_HOME": str(place / "state")}
    done = ascendtune("train", "recipe.yaml", "name=papers", "optim.max_steps=1", cwd=place, **home)
    assert done.returncode == 0, done.stderr
    assert "starting runs/papers-2" in done.stderr
    assert [path.name for path in foreign.iterdir()] == ["important.txt"]
