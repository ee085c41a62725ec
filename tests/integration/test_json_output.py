"""`--json` of every command: the same exit code as without, one document, and one convention for its names.

A name is in lower case with underscores. A number with a unit has the unit as the last word of its name, or of the
name around it: `memory_used_bytes`, `seconds`, `at_peak_bytes: {weights: 3}`. Moments are Unix time in seconds.
Objects of one list have the same keys: what is unknown is null.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ascendtune.cli.commands import COMMANDS
from ascendtune.cli.main import _real

pytestmark = pytest.mark.usefixtures("preloaded")

WITHOUT = {
    "starts a program, or talks": {
        "quickstart", "train", "launch", "chat", "align record", "migrate run", "track login", "jobs logs",
    },
    "prints or writes a file": {"init", "submit", "recipe convert", "recipe schema", "env export"},
    "shows what git and conda print": {"code clone", "code sync-upstream", "code merge-pr", "env conda"},
}  # fmt: skip

CALLS = {
    "fetch": "model no-owner --verify",
    "plan": "recipe.yaml --device 910b3",
    "profile": "trace.json.gz",
    "bench": "recipe.yaml --devices 1 --steps 2 --warmup 1 --repeats 1",
    "merge": "adapter --to merged",
    "push": "notes o/m --dry-run",
    "generate": "notes Hi --max-new-tokens 2",
    "devices": "",
    "doctor": "packages versions disk",
    "env mirrors": "show",
    "env install-plan": "",
    "env caches": "",
    "env mount": "check .",
    "env permissions": "",
    "comm test": "--devices 2 --collective barrier",
    "comm bench": "--devices 2 --max-bytes 64 --iterations 1",
    "align compare": "runs/notes runs/other",
    "align bisect": "runs/notes runs/other --yes --switch optimizer",
    "align nan": "runs/notes",
    "align tasks": "a.json b.json",
    "explain": "failed.log",
    "data show": "recipe.yaml --stats",
    "jobs list": "--all",
    "jobs show": "notes",
    "jobs stop": "notes",
    "jobs cleanup": "",
    "jobs stacks": "runs/notes",
    "recipe check": "recipe.yaml",
    "runs list": "",
    "runs show": "notes",
    "runs clean": "",
    "runs compare": "notes other",
    "track send": "notes --to mlflow",
    "track sync": ". --dry-run",
    "track import": "runs/notes/tensorboard --to imported",
    "migrate check": "script.py",
}
CODES = {
    "fetch": 2, "env install-plan": None, "align compare": 1, "align bisect": 1, "align nan": 4, "explain": 1,
    "jobs stacks": 2, "migrate check": 1, "track send": None, "jobs cleanup": None,
}  # fmt: skip
"""The exit codes that are not 0; None: it depends on what is installed and what runs here."""
ONCE = {"bench", "comm test", "comm bench", "align bisect", "jobs cleanup"}
"""Not called without --json: a minute of trainings, or processes of others, which come and go."""

UNITS = ("bytes", "seconds", "ratio", "watts", "celsius", "joules", "per_second", "flops")
MOMENTS = {"started", "ended", "written", "time", "monotonic", "started_monotonic"}
PLAIN_NUMBERS = {
    # Of a training.
    "loss", "evaluation_loss", "loss_difference", "grad_norm", "learning_rate", "epoch", "perplexity", "weight", "mfu",
    "hfu", "tokens", "speedup", "efficiency", "gain", "mean_difference", "noise", "error", "difference", "effect",
    "tolerance", "calls", "operators",
    # Of a host, and of other programs' records.
    "load_average", "reference", "candidate", "low", "high", "seen", "expected",
}  # fmt: skip
RECIPE_KEYS = {"values", "recipe", "keys", "changes"}
NAMED_BY_DATA = RECIPE_KEYS | {
    "numa_nodes", "config_hashes", "moments_bytes", "at_peak_bytes", "loss",
    "held_before_bytes", "bytes", "copies_seconds", "compute_seconds", "exposed_communication_seconds", "modules",
    "hidden_communication_seconds", "aside_seconds", "synchronisation", "evaluation_loss", "log_files", "log_sizes",
    "dropped", "versions", "settings", "devices", "captured", "facts", "not_swapped", "unread", "damaged", "extras",
}  # fmt: skip
"""Objects whose names come from data: of tensors, operators, files, recipe keys, steps."""
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
VAGUE = re.compile(r"(?!world_)(.*_)?(ms|us|mb|gb|mib|gib|kb|size|duration|age|elapsed|memory|mem|speed|bandwidth)")


def breaches(content: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Each breach of the convention in a document."""
    has_unit = any(name.endswith(UNITS) or name in RECIPE_KEYS for name in path)
    match content:
        case dict():
            for name, value in content.items():
                if not {*path} & NAMED_BY_DATA and not NAME.fullmatch(name):
                    yield f"name {'.'.join((*path, name))}"
                yield from breaches(value, (*path, name))
        case list():
            objects = [set(each) for each in content if isinstance(each, dict)]
            if objects and not {*path} & NAMED_BY_DATA and set.union(*objects) != set.intersection(*objects):
                lacking = set.union(*objects) - set.intersection(*objects)
                yield f"keys that only some have: {'.'.join(path)} {sorted(lacking)}"
            for each in content:
                yield from breaches(each, path)
        case bool():
            pass
        case int() | float() if path and not has_unit and path[-1] not in MOMENTS:
            if VAGUE.fullmatch(path[-1]) or (isinstance(content, float) and not {*path} & PLAIN_NUMBERS):
                yield f"no unit: {'.'.join(path)}"


def ascendtune(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ascendtune", *words]
    env = {**os.environ, **environment}
    return subprocess.run(argv, cwd=cwd, text=True, capture_output=True, env=env, timeout=240, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("home")
    return {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "XDG_STATE_HOME": str(home / "state")}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, home: dict[str, str]) -> Path:
    """A directory with two runs of three steps, an adapter, and what other commands read."""
    place = tmp_path_factory.mktemp("place")
    rows = [{"prompt": f"What is {number}?", "completion": f"It is {number}."} for number in range(30)]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "recipe.yaml").write_text(
        f"name: notes\nmodel: {{path: {tiny_model}}}\ndata: {{train: rows.jsonl, eval_fraction: 0.1, max_length: 64}}\n"
        "optim: {max_steps: 3, learning_rate: 1e-3}\nprecision: fp32\neval: {every_steps: 3}\n"
        "checkpoint: {every_steps: 1}\nalign: {dump_steps: '1'}\n"
    )
    for changes in ((), ("name=other", "optim.learning_rate=2e-3"), ("name=adapter", "method.tuner=lora")):
        trained = ascendtune("train", "recipe.yaml", *changes, cwd=place, **home)
        assert trained.returncode == 0, trained.stderr
    (place / "failed.log").write_text("Traceback\nModuleNotFoundError: No module named 'torch_npu'\n")
    (place / "script.py").write_text("import torch\nx = torch.zeros(1).double()\nimport xformers\n")
    for name, scores in (("a", [1, 0, 1]), ("b", [1, 1, 1])):
        (place / f"{name}.json").write_text(json.dumps({"task": scores}))
    trace = Path(__file__).parents[1] / "fixtures" / "profile" / "h200-1b-full.trace.json.gz"
    shutil.copy(trace, place / "trace.json.gz")
    return place


def test_every_command_answers_programs_or_says_why_not() -> None:
    answering = {
        path for path in COMMANDS if any("--json" in each.opts for each in _real(path, path.split()[-1]).params)
    }
    assert answering == CALLS.keys()
    assert COMMANDS.keys() - answering == set.union(*WITHOUT.values())


@pytest.mark.parametrize("path", CALLS)
def test_json_has_the_exit_code_of_the_text_and_one_convention(path: str, place: Path, home: dict[str, str]) -> None:
    words = [*path.split(), *CALLS[path].split()]
    told = ascendtune(*words, "--json", cwd=place, **home)
    if path in ("merge", "track import"):
        shutil.rmtree(place / words[-1])
    documents = told.stdout.splitlines() if path == "generate" else [told.stdout]
    contents = [json.loads(each) for each in documents]
    assert contents, told.stderr
    assert [*breaches(contents)] == []
    for content in contents:
        if isinstance(content, dict):
            assert content.get("exit_code", told.returncode) == told.returncode
    assert CODES.get(path, 0) in (told.returncode, None), told.stderr
    if path not in ONCE:
        assert ascendtune(*words, cwd=place, **home).returncode == told.returncode


@pytest.mark.parametrize("scenario", ["healthy-a3", "card-alarmed", "leftover-process", "npu-smi-absent"])
@pytest.mark.parametrize("words", ["devices", "doctor", "env install-plan"])
def test_json_on_ascend_has_the_exit_code_of_the_text_and_one_convention(
    scenario: str, words: str, tmp_path: Path, home: dict[str, str]
) -> None:
    argv = [sys.executable, "-m", "ascend_node", scenario, "ascendtune", *words.split()]
    env = {**os.environ, **home, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*argv, *more], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)

    told = run("--json")
    content = json.loads(told.stdout)
    assert [*breaches(content)] == []
    assert told.returncode == run().returncode
    assert not isinstance(content, dict) or content.get("exit_code", told.returncode) == told.returncode


def test_an_error_is_one_line_so_that_readers_of_lines_understand_it(place: Path, home: dict[str, str]) -> None:
    told = ascendtune("generate", "no-such-run", "Hi", "--json", cwd=place, **home)
    (line,) = told.stdout.splitlines()
    assert json.loads(line)["errors"][0]["exit_code"] == told.returncode
