"""Runs small enough to be made many times: rows written from a seed, the real `prepare_run` and the real worker."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ascendtune.core import log
from ascendtune.core.rundir import RunDir
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import attempt
from ascendtune.train.loop import Loop
from ascendtune.train.phases import Phases
from ascendtune.train.prepare import prepare_run
from ascendtune.train.setup import set_up
from ascendtune.train.strategy.base import Strategy

WORDS = ["atom", "balanced", "capital", "clips", "diet", "friends", "healthy", "Paris", "sleep", "tips", "天气", "公园"]
ROWS = 78
"""Twenty steps of four rows; the last has two."""

Change = dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """A run that has ended."""

    run: RunDir

    def curve(self, key: str) -> list[Any]:
        return [record[key] for record in self.run.read_metrics()]

    def losses(self) -> list[float]:
        return self.curve("loss")

    def evaluations(self) -> list[dict[str, Any]]:
        return list(self.run.read_evaluations())

    def weights(self) -> dict[str, torch.Tensor]:
        """What was exported: the model, or the adapter."""
        from safetensors.torch import load_file

        (file,) = self.run.model.glob("*.safetensors")
        return load_file(file)


Train = Callable[..., Trained]


def write_rows(path: Path, count: int, seed: int) -> Path:
    """Conversations of one or two turns, 12 to 60 tokens."""
    draw = random.Random(seed)

    def say(role: str, most: int) -> dict[str, str]:
        return {"role": role, "content": " ".join(draw.choices(WORDS, k=draw.randint(1, most)))}

    with path.open("w") as file:
        for _ in range(count):
            turns = draw.choice((1, 1, 2))
            messages = [say(role, most) for _ in range(turns) for role, most in (("user", 4), ("assistant", 6))]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "train.jsonl", ROWS, seed=0)


@pytest.fixture(scope="session")
def other_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For evaluation."""
    return write_rows(tmp_path_factory.mktemp("rows") / "eval.jsonl", 10, seed=1)


@pytest.fixture
def variant(tiny_model: Path, tmp_path: Path) -> Callable[..., Path]:
    """A model of another architecture, with random weights and the tiny model's tokenizer."""

    def make(config: Any, edit: Callable[[Any], object] = lambda model: None) -> Path:
        from transformers import AutoModelForCausalLM

        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            edit(model)
        directory = tmp_path / config.model_type
        model.save_pretrained(directory)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tiny_model / name, directory)
        return directory

    return make


@pytest.fixture
def make_loop(recipe: Callable[..., Recipe]) -> Iterator[Callable[..., Loop]]:
    """The loop before its first step, as the worker makes it; what is resolved is in its run.json."""
    with ExitStack() as held:

        def make(**changes: Any) -> Loop:
            asked = recipe(**changes)
            start = prepare_run(asked, {})
            assert start.run is not None
            strategy = Strategy(find_device())
            return set_up(start.run, start.run.read(), asked, strategy, start.prepared, Phases(None), held)

        yield make


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    """Drawing costs more than these runs do, and has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempt, "draw", lambda run: None)
        yield


@pytest.fixture
def recipe(tiny_model: Path, rows: Path, tmp_path: Path) -> Callable[..., Recipe]:
    """A recipe in fp32, padded, four rows a step, with what a test wants to be different: `optim={"epochs": 2}`."""

    def make(**changes: Any) -> Recipe:
        values: Change = {
            "run_dir": str(tmp_path / "runs" / "{name}"),
            "model": {"path": str(tiny_model)},
            "data": {"train": str(rows), "packing": False, "max_length": 128},
            "optim": {"learning_rate": 1e-3},
            "batch": {"per_device": 4},
            "precision": "fp32",
            "track": {"tensorboard": False},
            "checkpoint": {"every_steps": 1000, "resume": "never"},
        }
        return Recipe.check(_merged(values, changes))

    return make


@pytest.fixture
def train(recipe: Callable[..., Recipe]) -> Train:
    """Train in this process."""

    def start(**changes: Any) -> Trained:
        run = _prepared(recipe(**changes))
        attempt.train(run, run.read())
        return Trained(run)

    return start


@pytest.fixture
def train_on_ranks(recipe: Callable[..., Recipe], on_ranks: Callable[..., None]) -> Train:
    """`train_on_ranks(2, …)`: one process per rank, joined by Gloo, with the variables that torchrun sets."""

    def start(world_size: int, **changes: Any) -> Trained:
        run = _prepared(recipe(**changes))
        on_ranks(world_size, partial(attempt.train, run, run.read()))
        return Trained(run)

    return start


@pytest.fixture
def on_ranks() -> Callable[..., None]:
    """`on_ranks(2, function)`: call it in one process per rank, with the variables that torchrun sets."""

    def start(world_size: int, function: Callable[[], None]) -> None:
        variables = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        # Forked: what took seconds to import is there already.
        context = multiprocessing.get_context("fork")
        ranks = [context.Process(target=_be_rank, args=(function, rank, variables)) for rank in range(world_size)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join(timeout=300)
        exit_codes = [each.exitcode for each in ranks]
        for each in ranks:
            if each.is_alive():
                os.kill(each.pid, signal.SIGKILL)
        assert exit_codes == [0] * world_size

    return start


@pytest.fixture
def start_by_torchrun(recipe: Callable[..., Recipe]) -> Train:
    """`start_by_torchrun(2, …)`: `torchrun -m ascendtune.train.worker RUNDIR`, as somebody types it."""

    def start(world_size: int, **changes: Any) -> Trained:
        run = _prepared(recipe(**changes))
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
        ended = subprocess.run(
            [*torchrun, "-m", "ascendtune.train.worker", run.path], capture_output=True, text=True, timeout=200
        )
        assert ended.returncode == 0, ended.stderr
        return Trained(run)

    return start


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Models as they were in memory when their runs ended."""
    in_memory: list[Any] = []
    export = attempt.export_model

    def note(tuned: Any, *others: Any, **named: Any) -> None:
        in_memory.append(tuned)
        export(tuned, *others, **named)

    monkeypatch.setattr(attempt, "export_model", note)
    return in_memory


def _prepared(recipe: Recipe) -> RunDir:
    run = prepare_run(recipe, {}).run
    assert run is not None
    return run


def _be_rank(target: Callable[[], None], rank: int, variables: dict[str, str]) -> None:
    # A fork makes torch's thread pool unusable. The first thread that asks for it makes it anew; of several at once, as
    # those that load weights are, the others would find none.
    torch.set_num_threads(torch.get_num_threads())
    os.environ |= {**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    log.set_up()
    target()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _merged(base: Change, changes: Change) -> Change:
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
