"""Commands of docs/guide that need a server, conda, minutes or a running job: run with these at hand.

Names of public servers become a server on loopback; conda is the stand-in of the unit tests; github.com is a directory.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import time
from pathlib import Path

import pytest

from ascendtune.core.rundir import RunDir
from git_helpers import commit, git
from guide_pages import PATIENCE_SECONDS, Place, commands, needing
from hub_server import Hub, serving

pytestmark = pytest.mark.usefixtures("preloaded")

_TESTS = Path(__file__).parents[1]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


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
    rename, clone = sorted(commands("env conda", "conda"), reverse=True)
    place.run(clone.replace("/data/", f"{place.path}/data/"), "--yes")
    assert (place.path / "data/envs/new/packages.json").is_file()
    place.run(rename, "--yes")
    assert [each.name for each in (root / "envs").iterdir()] == ["new"]


def test_repositories_are_cloned_and_followed(place: Place) -> None:
    github = place.path / "github"
    for name in ("volcengine/verl", "as12138/verl", "OpenRLHF/OpenRLHF"):
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
    for clone in commands("code clone", "a network"):
        place.run(clone)
    assert (place.path / "verl/.git").is_dir() and (place.path / "verl-npu/.git").is_dir()
    (sync,) = commands("code sync-upstream", "a network")
    work = place.path / "work/OpenRLHF/OpenRLHF"
    mine = Place(place.path / "mine")
    mine.env = place.env
    git(place.path, "clone", "-q", str(github / "OpenRLHF/OpenRLHF.git"), str(mine.path))
    (work / "test_more.py").write_text("def test_more():\n    assert open('more.txt').read()\n")
    git(work, "add", "test_more.py")
    commit(work, more="2")
    git(work, "push", "-q", str(github / "OpenRLHF/OpenRLHF.git"), "main", "main:refs/pull/1234/head")
    mine.run(sync)
    assert (mine.path / "more.txt").is_file()
    git(mine.path, "checkout", "-q", "main")
    (merge,) = commands("code merge-pr", "a network")
    assert "1 passed" in mine.run(merge)


def test_mirrors_that_do_not_answer_are_named(place: Place) -> None:
    nothing = {"no_proxy": "", "NO_PROXY": ""}
    place.env |= {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", **nothing}
    (mirrors,) = commands("env mirrors test", "a network")
    assert "hf-mirror" in place.run(mirrors, code=3)


def test_models_and_data_sets_are_fetched(place: Place) -> None:
    files = {"config.json": b'{"model_type": "qwen2"}', "model.safetensors": b"0" * 5_000}
    with serving(Hub(files, frozenset({"model.safetensors"}))) as hub:
        place.env |= {"MODELSCOPE_ENDPOINT": hub.endpoint, "HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0"}
        (place.path / "supplies.yaml").write_text("models:\n  - {id: o/m, to: from-list}\n")
        verify = needing("slow-network", "a fetched model")
        for command in (
            *commands("fetch", "a network"), *needing("slow-network", "a network", "ascendtune fetch"),
            *needing("first-run", "a network", "ascendtune fetch"),
        ):  # fmt: skip
            words = re.sub(r"Qwen/[\w.-]+|openai/gsm8k", "o/m", command).removesuffix(" > fetch.sh")
            at = () if "modelscope" in words else ("--from", hub.endpoint)
            printed = place.run(re.sub(" --from hf(-mirror)?", "", words), *at)
            if "--export-script" in words:
                assert "curl" in printed
                continue
            if (place.path / "models/m").is_dir():
                assert "all as fetched" in place.run(verify[0].replace("Qwen/Qwen2.5-0.5B", "o/m"))
            for found in ("models/m", "data/gsm8k", "from-list"):
                if (place.path / found).is_dir():
                    assert (place.path / found / "model.safetensors").read_bytes() == files["model.safetensors"]
                    shutil.rmtree(place.path / found)
                    break
            else:
                pytest.fail(f"{command} fetched nothing")


def test_job_in_the_background_is_looked_into_stopped_and_continued(place: Place) -> None:
    keys = {"optim": {"max_steps": 60, "learning_rate": 1e-3}, "checkpoint": {"every_steps": 20}}
    # Its steps are long while it is looked into and stopped, and short when it goes on.
    place.write_recipe(**keys, batch={"per_device": 1, "accumulate": 60})
    run = RunDir(place.path / "runs/alpaca")
    (detach,) = commands("train recipe.yaml --detach", "minutes")
    place.run(detach)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (run.metrics.is_file() and run.metrics.stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (stop,) = commands("jobs stop", "a running job")
    (stacks,) = commands("jobs stacks", "a running job")
    (logs,) = commands("jobs logs", "a running job")
    (show,) = needing("hang", "a running job", "ascendtune jobs show")
    assert "rank 0" in place.run(stacks) and "running" in place.run(show)
    assert needing("hang", "a running job", "ascendtune jobs st") == [stacks, f"{stop} --yes"]
    assert "step 1/60" in place.run(logs)
    place.run(stop, "--yes")
    steps = run.last_step() or 0
    assert steps < 60
    place.write_recipe(**keys)
    place.run(next(each for each in commands("train recipe.yaml", "minutes") if each.endswith("recipe.yaml")))
    assert run.last_step() == 60
    assert json.loads(run.metrics.read_text().splitlines()[0])["step"] == 1


def test_two_trainings_are_compared_and_the_cause_of_a_difference_is_searched(place: Place) -> None:
    place.write_recipe(optim={"learning_rate": 1e-2}, track={"tensorboard": False})
    (gpu,) = needing("from-gpu", "a GPU")
    (npu,) = needing("from-gpu", "an NPU")
    place.run(gpu)
    place.run(npu, "optim.epsilon=0.1")
    (bisect,) = needing("loss-differs", "a few minutes")
    assert "optim.epsilon" in place.run(bisect, "--yes", code=None)
    (dumped,) = needing("loss-differs", "a minute")
    place.run(dumped)
    assert any((place.path / "runs/dumped").rglob("dump*"))
    (place.path / "train.py").write_text(
        "import torch\n\nmodel = torch.nn.Linear(4, 2)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n    loss = model(torch.ones(3, 4)).square().mean()\n    loss.backward()\n"
        "    optimizer.step()\n    optimizer.zero_grad()\n"
    )
    (record,) = needing("loss-differs", "a GPU")
    place.run(record)
    assert (place.path / "gpu").is_dir()


def test_trainings_profiles_and_a_program_in_the_background_are_run(place: Place) -> None:
    place.write_recipe(optim={"max_steps": 10, "learning_rate": 1e-3})
    (place.path / "download.sh").write_text("#!/bin/sh\necho fetched > done.txt\n")
    (place.path / "download.sh").chmod(0o755)
    (launch,) = commands("launch --detach", "minutes")
    place.run(launch)
    trainings = [each for each in commands("train recipe.yaml ", "minutes") if "--detach" not in each]
    for command in trainings:
        place.run(command)
    assert len(trainings) == len(list((place.path / "runs").glob("*/model"))) == 2
    (place.path / "dataset_info.json").write_text('{"rows": {"file_name": "rows.jsonl"}}')
    (place.path / "llamafactory.yaml").write_text(
        "model_name_or_path: model\nstage: sft\ndo_train: true\nfinetuning_type: lora\ndataset: rows\ndataset_dir: .\n"
        "template: qwen\noutput_dir: runs/lf\nmax_steps: 2\n"
    )
    (llamafactory,) = commands("train llamafactory.yaml", "minutes")
    place.run(llamafactory)
    assert (place.path / "runs/lf/adapter_model.safetensors").is_file() or (place.path / "runs/lf/model").is_dir()
    shutil.copy(place.path / "rows.jsonl", place.path / "alpaca_data_1k.json")
    (init,) = commands("init", "minutes")
    place.run(init)
    place.run("ascendtune recipe check alpaca.yaml")
    (profile,) = commands("profile", "minutes")
    assert "report:" in place.run(profile)
    (bench,) = commands("comm bench", "minutes")
    assert "2 ranks" in place.run(bench)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (place.path / "done.txt").is_file():
        assert time.monotonic() < deadline
        time.sleep(0.05)
