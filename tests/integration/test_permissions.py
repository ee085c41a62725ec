"""Files that a user other than root may not read or write: the message says which, with the remedy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

READ = ("error: cannot be read: permission is denied", "check its permissions")
ROW = {"instruction": "Name the capital of France.", "output": "Paris."}
RECIPE = {
    "model": {"path": "model"},
    "data": {"train": "rows.jsonl", "max_length": 64},
    "optim": {"learning_rate": 1e-3, "max_steps": 2},
}
FOREIGN = {
    "model_name_or_path": "model",
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "full",
    "dataset": "rows",
    "dataset_dir": ".",
    "template": "chatml",
    "output_dir": "saves",
}

CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "recipe": (("recipe", "check", "shut.yaml"), (*READ, "where: shut.yaml")),
    "data": (("recipe", "check", "r.yaml", "data.train=shut.jsonl"), (*READ, "where: shut.jsonl")),
    "data to be prepared": (("train", "r.yaml", "data.train=shut.jsonl", "--prepare"), (*READ, "where: shut.jsonl")),
    "data below": (("recipe", "check", "r.yaml", "data.train=shut/rows.jsonl"), (*READ, "where: shut/rows.jsonl")),
    "a directory of data": (("recipe", "check", "r.yaml", "data.train=shut"), (*READ, "where: shut\n")),
    "config.json": (("recipe", "check", "r.yaml", "model.path=shut-config"), (*READ, "shut-config/config.json")),
    "tokenizer": (
        ("train", "r.yaml", "model.path=shut-tokenizer", "--prepare"),
        (*READ, "shut-tokenizer/tokenizer.json"),
    ),
    "a log": (("explain", "shut.jsonl"), (*READ, "where: shut.jsonl")),
    "a log below": (("explain", "shut/a.log"), (*READ, "where: shut/a.log")),
    "a run": (("runs", "show", "runs/shut"), (*READ, "where: runs/shut/run.json")),
    "runs": (("runs", "compare", "runs/open", "runs/shut"), (*READ, "where: runs/shut/run.json")),
    "the list of jobs": (("jobs", "list"), (*READ, "ascendtune/jobs")),
    "a job": (("jobs", "show", "some"), (*READ, "ascendtune/jobs")),
    "a job to be started": (("launch", "--", "true"), ("permission is denied", "export XDG_STATE_HOME=")),
    "a place to write": (
        ("recipe", "convert", "theirs.yaml", "-o", "full/x.yaml"),
        ("permission is denied while writing the recipe", "choose a directory that you may write", "full/x.yaml"),
    ),
    "no place to write": (
        ("recipe", "convert", "theirs.yaml", "-o", "nowhere/x.yaml"),
        ("the directory does not exist", "mkdir -p nowhere", "where: nowhere"),
    ),
    "no place for a bundle": (
        ("doctor", "--bundle", "nowhere/x.tgz"),
        ("the directory does not exist", "mkdir -p nowhere", "where: nowhere"),
    ),
}

LIST = "the list of runs"
_WORDS = {**{name: words for name, (words, _) in CASES.items()}, LIST: ("runs", "list")}


@pytest.fixture(scope="module")
def answers(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the command line says to each case, told by a process that permissions bind."""
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("root is bound by no permissions, and there is no setpriv to make it so")
    home = tmp_path_factory.mktemp("permissions")
    _furnish(home, tiny_model)
    cases = [{"directory": str(home), "words": words} for words in _WORDS.values()]
    (home / "cases.json").write_text(json.dumps(cases))
    prefix = [] if os.geteuid() else ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    result = subprocess.run(
        [*prefix, sys.executable, str(Path(__file__).with_name("refuse.py")), str(home / "cases.json")],
        env={**os.environ, "XDG_CACHE_HOME": str(home / "cache"), "XDG_STATE_HOME": str(home / "state")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return dict(zip(_WORDS, json.loads(result.stdout), strict=True))


def _furnish(home: Path, model: Path) -> None:
    for name in ("rows.jsonl", "shut.jsonl"):
        (home / name).write_text((json.dumps(ROW) + "\n") * 20)
    for name in ("r.yaml", "shut.yaml"):
        (home / name).write_text(yaml.safe_dump(RECIPE))
    (home / "theirs.yaml").write_text(yaml.safe_dump(FOREIGN))
    (home / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.jsonl"}}))
    for name in ("model", "shut-config", "shut-tokenizer"):
        shutil.copytree(model, home / name)
    for name in ("open", "shut", "unknown"):
        (home / "runs" / name).mkdir(parents=True)
        (home / "runs" / name / "run.json").write_text(json.dumps({"state": "finished", "attempts": []}))
    for name in ("shut", "full", "state/ascendtune/jobs"):
        (home / name).mkdir(parents=True)
    (home / "full").chmod(0o500)
    for path in (
        *("shut.yaml", "shut.jsonl", "shut", "shut-config/config.json", "shut-tokenizer/tokenizer.json"),
        *("runs/shut/run.json", "runs/unknown", "state/ascendtune/jobs"),
    ):
        (home / path).chmod(0)


@pytest.mark.parametrize("name", CASES)
def test_permission_errors_name_the_path(answers: dict[str, dict[str, Any]], name: str) -> None:
    answer, said = answers[name], CASES[name][1]
    assert answer["code"] == 3, answer["err"]
    assert answer["out"] == "" and answer["err"].count("error: ") == 1 and "Traceback" not in answer["err"]
    for words in said:
        assert words in answer["err"]


def test_an_unreadable_run_hides_no_other(answers: dict[str, dict[str, Any]]) -> None:
    answer = answers[LIST]
    assert answer["code"] == 0
    said = {f"warning: permission denied: runs/{name}/run.json" for name in ("shut", "unknown")}
    assert set(answer["err"].splitlines()) == said
    states = dict(line.split()[:2] for line in answer["out"].splitlines()[1:])
    assert states == {"open": "finished", "shut": "unreadable", "unknown": "unreadable"}
