"""Commands of docs/guide/replaced.md that need a server, conda, minutes or a running job: run with these at hand.

Names of public servers become a server on loopback; conda is the stand-in of the unit tests; github.com is a directory.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from ascendtune.core.rundir import RunDir
from git_helpers import commit, git
from hub_server import Hub, serving
from replaced_page import rows
from tiny_model import write_tiny_model

pytestmark = pytest.mark.usefixtures("preloaded")

_TESTS = Path(__file__).parents[1]
_ELSEWHERE = {
    "devices --watch": "unit/cli/test_devices.py",
    "devices --topology": "unit/cli/test_devices.py",
    "doctor --deep": "integration/check/test_probe_on_npu.py",
    "track login": "integration/test_secrets.py",
    "track.send_to='[wandb]'": "integration/train/test_live_sending.py",
    "train recipe.yaml --devices 8": "integration/train/npu",
    "launch --devices 8 -- python train.py": "integration/job/test_launch.py",
    "train recipe.yaml --device-ids 0,1": "integration/train/npu",
    "migrate run train.py": "integration/train/npu",
    "train recipe.yaml --nodes node1,node2": "integration/job/test_nodes.py",
    "align nan runs/alpaca": "integration/train/test_nan.py",
    "train llamafactory.yaml": "integration/train/test_llamafactory.py",
}
"""What the command has, and the tests that run it with other arguments."""
_HERE = ("env conda ", "code ", "fetch ", "train recipe.yaml", "launch --detach", "jobs ", "profile ", "comm bench ")
_PATIENCE_SECONDS = 300


class Place:
    """A directory in which commands of the page are run."""

    def __init__(self, path: Path) -> None:
        self.path, self.env = path, {**os.environ, "HOME": str(path), "COLUMNS": "100", "HF_HUB_OFFLINE": "0"}

    def run(self, command: str, *more: str, code: int = 0) -> str:
        argv = [sys.executable, "-m", "ascendtune", *shlex.split(command)[1:], *more]
        done = subprocess.run(
            argv, cwd=self.path, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=_PATIENCE_SECONDS,
        )  # fmt: skip
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def _commands(beginning: str, *marks: str) -> list[str]:
    """The commands of the page that begin so and have one of these marks."""
    found = [command for command, mark in rows() if mark in marks and command.startswith(f"ascendtune {beginning}")]
    assert found
    return found


def _write_recipe(place: Path, **keys: object) -> None:
    write_tiny_model(place / "model")
    examples = [{"instruction": f"What is {number} plus one?", "output": f"{number + 1}"} for number in range(20)]
    (place / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in examples))
    recipe = {
        "name": "alpaca", "model": {"path": "model"}, "data": {"train": "rows.jsonl", "max_length": 64},
        "precision": "fp32", "method": {"tuner": "lora"}, "batch": {"per_device": 1},
        **keys,
    }  # fmt: skip
    (place / "recipe.yaml").write_text(yaml.safe_dump(recipe))


def test_every_command_that_needs_something_is_run_somewhere() -> None:
    for command, mark in rows():
        if mark != "run" and not any(part in command for part in _ELSEWHERE):
            assert any(command.startswith(f"ascendtune {each}") for each in _HERE), command
    assert all((_TESTS / each).exists() for each in _ELSEWHERE.values())


def test_conda_environments_are_renamed_and_cloned(place: Place) -> None:
    root = place.path / "miniconda3"
    for prefix in (root, root / "envs/old"):
        (prefix / "conda-meta").mkdir(parents=True)
        (prefix / "conda-meta/history").touch()
        (prefix / "packages.json").write_text('[{"name": "torch", "version": "2.6.0"}]')
    (root / "condabin").mkdir()
    fake = _TESTS / "unit/machine/environment/fake_conda.py"
    (root / "conda").write_text(f'#!/bin/sh\nexec {sys.executable} {shlex.quote(str(fake))} "$@"\n')
    (root / "conda").chmod(0o755)
    place.env |= {"CONDA_EXE": str(root / "conda"), "FAKE_CONDA_ROOT": str(root)}
    rename, clone = sorted(_commands("env conda", "conda"), reverse=True)
    place.run(clone.replace("/data/", f"{place.path}/data/"), "--yes")
    assert (place.path / "data/envs/new/packages.json").is_file()
    place.run(rename, "--yes")
    assert [each.name for each in (root / "envs").iterdir()] == ["new"]


def test_repositories_are_cloned_and_followed(place: Place) -> None:
    github = place.path / "github"
    for name in ("volcengine/verl", "OpenRLHF/OpenRLHF"):
        work = place.path / "work" / name
        work.mkdir(parents=True)
        place_of_bare = github / f"{name}.git"
        place_of_bare.parent.mkdir(parents=True, exist_ok=True)
        git(work, "init", "-q", "-b", "main")
        for key in ("user.name", "user.email"):
            git(work, "config", key, "a@example.org")
        commit(work, train="1")
        git(place.path, "clone", "-q", "--bare", str(work), str(place_of_bare))
    # The address stays github.com: git itself reads the directory in its place.
    (place.path / ".gitconfig").write_text(
        f'[url "file://{github}/"]\ninsteadOf = https://github.com/\n[user]\nname = a\nemail = a@example.org\n'
    )
    (clone,) = _commands("code clone", "a network")
    place.run(clone)
    (sync,) = _commands("code sync-upstream", "a network")
    work = place.path / "work/OpenRLHF/OpenRLHF"
    mine = Place(place.path / "mine")
    mine.env = place.env
    git(place.path, "clone", "-q", str(github / "OpenRLHF/OpenRLHF.git"), str(mine.path))
    commit(work, more="2")
    git(work, "push", "-q", str(github / "OpenRLHF/OpenRLHF.git"), "main", "main:refs/pull/1234/head")
    mine.run(sync)
    assert (mine.path / "more.txt").is_file()
    git(mine.path, "checkout", "-q", "main")
    (merge,) = _commands("code merge-pr", "a network")
    mine.run(merge.replace("pytest -q", "test -f more.txt"))


def test_models_and_data_sets_are_fetched(place: Place) -> None:
    files = {"config.json": b'{"model_type": "qwen2"}', "model.safetensors": b"0" * 5_000}
    with serving(Hub(files, frozenset({"model.safetensors"}))) as hub:
        place.env |= {"MODELSCOPE_ENDPOINT": hub.endpoint, "HF_ENDPOINT": hub.endpoint}
        (place.path / "supplies.yaml").write_text("models:\n  - {id: o/m, to: from-list}\n")
        for command in _commands("fetch", "a network"):
            words = command.replace("Qwen/Qwen2.5-0.5B", "o/m").replace("openai/gsm8k", "o/m")
            at = () if "modelscope" in words else ("--from", hub.endpoint)
            place.run(words.replace(" --from hf-mirror", ""), *at)
            for found in ("models/m", "data/gsm8k", "from-list"):
                if (place.path / found).is_dir():
                    assert (place.path / found / "model.safetensors").read_bytes() == files["model.safetensors"]
                    shutil.rmtree(place.path / found)
                    break
            else:
                pytest.fail(f"{command} fetched nothing")


def test_job_in_the_background_is_looked_into_stopped_and_continued(place: Place) -> None:
    keys = {"optim": {"max_steps": 200, "learning_rate": 1e-3}, "checkpoint": {"every_steps": 20}}
    # Its steps are long while it is looked into and stopped, and short when it goes on.
    _write_recipe(place.path, **keys, batch={"per_device": 1, "accumulate": 20})
    run = RunDir(place.path / "runs/alpaca")
    (detach,) = _commands("train recipe.yaml --detach", "minutes")
    place.run(detach)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not (run.metrics.is_file() and run.metrics.stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stop, stacks, logs = (_commands(f"jobs {each}", "a running job")[0] for each in ("stop", "stacks", "logs"))
    assert "rank 0" in place.run(stacks)
    assert "step 1/200" in place.run(logs)
    place.run(stop, "--yes")
    steps = run.last_step() or 0
    assert steps < 200
    _write_recipe(place.path, **keys)
    place.run(next(each for each in _commands("train recipe.yaml", "minutes") if each.endswith("recipe.yaml")))
    assert run.last_step() == 200
    assert json.loads(run.metrics.read_text().splitlines()[0])["step"] == 1


def test_trainings_profiles_and_a_program_in_the_background_are_run(place: Place) -> None:
    _write_recipe(place.path, optim={"max_steps": 10, "learning_rate": 1e-3})
    (place.path / "download.sh").write_text("#!/bin/sh\necho fetched > done.txt\n")
    (place.path / "download.sh").chmod(0o755)
    (launch,) = _commands("launch --detach", "minutes")
    place.run(launch)
    trainings = [each for each in _commands("train recipe.yaml ", "minutes") if "--detach" not in each]
    for command in trainings:
        place.run(command)
    assert len(trainings) == len(list((place.path / "runs").glob("*/model"))) == 2
    (profile,) = _commands("profile", "minutes")
    assert "report:" in place.run(profile)
    (bench,) = _commands("comm bench", "minutes")
    assert "2 ranks" in place.run(bench, "--devices", "2")
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not (place.path / "done.txt").is_file():
        assert time.monotonic() < deadline
        time.sleep(0.05)
