"""The guides in docs/guide: every command is run, in the order of the pages, or is marked with what running it needs.

In a shell block the mark is a comment `# needs …` or `# takes …`; `# exit code 1 if …` allows that code. In the table
of docs/guide/replaced.md it is the last column. test_replaced_commands.py and test_replaced_on_devices.py run those
that are marked.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascendtune.cli import main as command_line
from guide_pages import GUIDES, commands, lines, needing, rows
from tiny_model import write_tiny_model

pytestmark = pytest.mark.usefixtures("preloaded")

PAGES = ("first-run", "from-gpu", "slow-network", "two-nodes", "hang", "loss-differs", "out-of-memory", "images")
_SLOW_SECONDS = 240


_ELSEWHERE = {
    "ascendtune quickstart": "test_quickstart.py",
    "ascendtune env install-plan --apply": "../unit/cli/test_env.py",
}
"""Commands that need more than a test of a page has, and the test that runs them."""
_NOT_RUN = {"pip install --editable '.[train]'"}
"""It needs a package index; `make setup` runs the same with `.[train,dev]`."""


def _commands(page: str) -> Iterator[tuple[str, set[int]]]:
    """Commands without `# needs …` or `# takes …`, and the exit codes that each may end with."""
    for command, comment in lines(page):
        inner = re.fullmatch(r'eval "\$\((ascendtune .*)\)"', command)
        if not comment.startswith(("needs ", "takes ")):
            yield inner[1] if inner else command, {0, 1} if comment.startswith("exit code 1 if") else {0}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine on which the guides are followed: a model, rows, a script for CUDA, a LLaMA-Factory recipe, events."""
    place = tmp_path_factory.mktemp("guides")
    write_tiny_model(place / "models/Qwen2.5-0.5B-Instruct")
    examples = [{"instruction": f"What is {number} plus one?", "output": f"{number + 1}"} for number in range(20)]
    (place / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in examples))
    (place / "data").mkdir()
    (place / "data/rows.json").write_text(json.dumps(examples))
    (place / "data/dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json"}}))
    (place / "llamafactory.yaml").write_text(
        "model_name_or_path: models/Qwen2.5-0.5B-Instruct\nstage: sft\ndo_train: true\nfinetuning_type: lora\n"
        "dataset: rows\ntemplate: qwen\noutput_dir: runs/lf\n"
    )
    (place / "train.py").write_text("import torch\n\nx = torch.rand(100, 100).cuda()\nprint(x @ x)\n")
    for name in ("gpu.json", "npu.json"):
        (place / name).write_text(json.dumps({"gsm8k": [number % 3 % 2 for number in range(60)]}))
    cache = place / "cache/torch_extensions/py311_cpu"
    cache.mkdir(parents=True)
    then = time.time() - 7200
    os.utime(cache, (then, then))
    return place


_OWN_PROCESS = ("train", "comm", "plan")
"""Commands that become or start processes with torch. The others run in this process, which costs less."""


@pytest.fixture
def _there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    for name in ("HF_ENDPOINT", "PIP_INDEX_URL", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "CONDARC", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": ".", "XDG_CACHE_HOME": "cache", "XDG_STATE_HOME": "state"}.items():
        monkeypatch.setenv(name, str(place / value))
    for name, value in {"HF_HUB_OFFLINE": "1", "COLUMNS": "100", "ASCENDTUNE_VERBOSITY": ""}.items():
        monkeypatch.setenv(name, value)


def _run(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    """Exit code and output of a command."""
    words = shlex.split(command)[1:]
    if words[0] not in _OWN_PROCESS:
        with pytest.raises(SystemExit) as ended:
            command_line.main(words)
        return ended.value.code, "".join(capsys.readouterr())
    argv = [sys.executable, "-m", "ascendtune", *words]
    # HF_HUB_OFFLINE takes effect while huggingface_hub is imported: with it the process could not be forked.
    env = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    env |= {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SLOW_SECONDS, check=False, env=env
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.usefixtures("_there")
def test_every_command_that_needs_nothing_special_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted: dict[str, set[int]] = {}
    for page in PAGES:
        for command, codes in _commands(page):
            wanted[command] = wanted.get(command, set()) | codes
    for command, mark in rows():
        if mark == "run":
            wanted.setdefault(command, {0, 1} if re.search(r" (doctor|env|migrate|jobs cleanup)\b", command) else {0})
    assert len(wanted) > 35
    failed = []
    for command, codes in wanted.items():
        assert command.startswith("ascendtune "), command
        if "runs/alpaca" in command and not (place / "runs/alpaca").exists():
            # The command that trains it needs NPUs.
            shutil.copytree(place / "runs/try", place / "runs/alpaca")
        if "runs/gpu" in command and not (place / "runs/gpu").exists():
            for side in ("gpu", "npu"):
                shutil.copytree(place / "runs/alpaca", place / "runs" / side)
        if "track import" in command:
            shutil.copytree(place / "runs/alpaca/tensorboard", place / "logs")
        code, output = _run(command, capsys)
        if code not in codes:
            failed.append(f"{command}: {code}\n{output[-1500:]}")
    assert not failed, "\n\n".join(failed)
    assert (place / "merged/config.json").is_file()
    assert "aliyun" in (place / ".config/pip/pip.conf").read_text() and "tuna" in (place / ".condarc").read_text()
    assert not (place / "cache/torch_extensions/py311_cpu").exists()


def test_every_command_that_needs_something_is_run_with_it() -> None:
    files = (Path(__file__).with_name(f"test_replaced_{each}.py") for each in ("commands", "on_devices"))
    text = "".join(each.read_text() for each in files)
    run = {each for which in re.findall(r'\bcommands\("([^"]*)", "([^"]*)"\)', text) for each in commands(*which)}
    selected = re.findall(r'\bneeding\("([^"]*)", "([^"]*)"(?:, "([^"]*)")?\)', text)
    run |= {each for which in selected for each in needing(*which)}
    assert {command for command, mark in rows() if mark != "run"} <= run
    wanted = {command for page in PAGES for command, comment in lines(page) if comment.startswith(("needs ", "takes "))}
    assert wanted - run == {*_ELSEWHERE, *_NOT_RUN}
    assert all((Path(__file__).parent / each).is_file() for each in _ELSEWHERE.values())


def test_each_page_is_followed_and_marks_say_what_is_needed() -> None:
    assert {path.stem for path in GUIDES.glob("*.md") if "zh-CN" not in path.name} == {*PAGES, "replaced"}
    marks = {mark for _, mark in rows()}
    assert marks == {
        "run", "NPUs", "eight devices", "a network", "two hosts", "a terminal", "conda", "minutes", "a running job",
        "a run with NaN",
    }  # fmt: skip
    assert len(rows()) >= 60
