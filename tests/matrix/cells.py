"""The combinations of the matrix, and a trial of each: a few steps of a tiny model, in one or several processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import socket
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascendtune.core.rundir import RunDir

LOSSES = ("pretrain", "sft", "reward", "sigmoid", "hinge", "ipo", "kto", "orpo", "simpo")
TUNERS: dict[str, dict[str, Any]] = {
    "full": {"tuner": "full"},
    "freeze": {"tuner": "freeze", "freeze": {"last_layers": 1}},
    "lora": {"tuner": "lora"},
    "lora, dora": {"tuner": "lora", "lora": {"dora": True}},
    "lora, pissa": {"tuner": "lora", "lora": {"init": "pissa"}},
    "oft": {"tuner": "oft"},
}
STEPS = 3
ROWS = 12
_PATIENCE_SECONDS = 240
_PATIENCE_AFTER_A_FAILURE_SECONDS = 20
"""For the other ranks, which may wait for the one that failed."""


@dataclass(frozen=True, eq=False)
class Way:
    """A strategy on a number of ranks."""

    ranks: int
    parallel: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        named = self.parallel.get("strategy", "one device")
        options = self.parallel.get(named, {})
        stage = f" ZeRO-{options['stage']}" if "stage" in options else ""
        offloads = " + offload" if any(str(key).startswith("offload") for key in options) else ""
        return f"{named}{stage}{offloads} × {self.ranks}"


WAYS = (
    Way(1),
    Way(2, {"strategy": "ddp"}),
    Way(1, {"strategy": "fsdp"}),
    Way(2, {"strategy": "fsdp"}),
    Way(2, {"strategy": "fsdp", "fsdp": {"offload": True}}),
    *(Way(2, {"strategy": "deepspeed", "deepspeed": {"stage": stage}}) for stage in range(4)),
    Way(2, {"strategy": "deepspeed", "deepspeed": {"stage": 2, "offload_optimizer": "cpu"}}),
)


def write_rows(directory: Path) -> dict[str, Path]:
    """A file of rows for each kind of loss."""
    draw = random.Random(0)
    words = ["atom", "balanced", "capital", "clips", "diet", "friends", "healthy", "Paris", "sleep", "tips"]

    def text(most: int) -> str:
        return " ".join(draw.choices(words, k=draw.randint(1, most)))

    rows = {
        "text": [{"text": text(30)} for _ in range(ROWS)],
        "conversations": [{"prompt": text(4), "completion": text(6)} for _ in range(ROWS)],
        "pairs": [{"prompt": text(4), "chosen": f"good {text(5)}", "rejected": text(7)} for _ in range(ROWS)],
        "singles": [{"prompt": text(4), "completion": text(6), "label": draw.random() < 0.5} for _ in range(ROWS)],
    }
    files = {kind: directory / f"{kind}.jsonl" for kind in rows}
    for kind, file in files.items():
        file.write_text("".join(json.dumps(row) + "\n" for row in rows[kind]))
    return files


def asked(loss: str, tuner: str, way: Way, files: dict[str, Path], model: Path, runs: Path) -> dict[str, Any]:
    """The recipe of a cell: twelve rows in three steps, whatever the number of ranks."""
    stage = {"stage": loss} if loss in ("pretrain", "sft", "reward") else {"stage": "preference"}
    kind = {"pretrain": "text", "sft": "conversations", "kto": "singles"}.get(loss, "pairs")
    preference = {"preference": {"loss": loss}} if stage["stage"] == "preference" else {}
    return {
        "name": f"{loss}-{tuner}-{way}".translate(str.maketrans(dict.fromkeys(" ,×+", "_"))),
        "run_dir": str(runs / "{name}"),
        "model": {"path": str(model)},
        "data": {"train": str(files[kind]), "packing": loss == "pretrain", "max_length": 32},
        "method": {**stage, **TUNERS[tuner], **preference},
        "optim": {"learning_rate": 1e-3, "max_steps": STEPS},
        "batch": {"per_device": 4 // way.ranks},
        "parallel": way.parallel,
        "precision": "fp32",
        "track": {"tensorboard": False},
        "checkpoint": {"resume": "never", "every_steps": 1000},
    }


@dataclass(frozen=True)
class Outcome:
    curve: list[float] | None
    """Loss and gradient norm of each step."""
    refused: str = ""
    """The reason, where the combination is refused before anything starts."""
    failed: str = ""
    run: RunDir | None = None
    seconds: float = 0.0
    """From the start of the ranks to their end."""


def attempt(values: dict[str, Any], ranks: int, *, ended_by: str = "", ended_after: float = 0.0) -> Outcome:
    """Train; on several ranks in forked processes, which need not import anything again.

    Args:
        ended_by: SIGKILL to all ranks, or SIGTERM to the last one; empty: they are not disturbed.
        ended_after: seconds after which they get it, where they are not done by then.
    """
    from ascendtune.core.errors import DataError, RecipeError

    try:
        run = prepared(values)
    except (RecipeError, DataError) as error:
        return Outcome(None, refused=error.what)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    processes = [
        context.Process(target=_be_rank, args=(run, variables, results)) for variables in variables_of_ranks(ranks)
    ]
    begun = time.monotonic()
    for each in processes:
        each.start()
    if ended_by:
        _join(processes, begun + ended_after)
        if ended_by == "SIGTERM":
            processes[-1].terminate()
    if ended_by != "SIGKILL":
        _join(processes, begun + _PATIENCE_SECONDS)
    for each in processes:
        if each.is_alive():
            each.kill()
            each.join()
    failures = []
    while not results.empty():
        failures.append(results.get())
    if failures or any(each.exitcode for each in processes):
        return Outcome(None, failed=failures[0] if failures else f"exit codes {[each.exitcode for each in processes]}")
    return Outcome(curve_of(run), run=run, seconds=time.monotonic() - begun)


def _join(processes: Sequence[BaseProcess], until: float) -> None:
    """Wait for the end of all, at most until this time of the monotonic clock, or a while after the first failure."""
    alive = list(processes)
    while alive and (left := until - time.monotonic()) > 0:
        wait([each.sentinel for each in alive], left)
        # A sentinel is ready a moment before the exit code is known.
        alive = [each for each in alive if each.is_alive()]
        if any(each.exitcode for each in processes):
            until = min(until, time.monotonic() + _PATIENCE_AFTER_A_FAILURE_SECONDS)


def prepared(values: dict[str, Any]) -> RunDir:
    """A run directory that is ready for its ranks.

    Raises:
        RecipeError: the combination is refused.
    """
    from ascendtune.recipe.recipe import Recipe
    from ascendtune.train.prepare import prepare_run

    run = prepare_run(Recipe.check(values), {}).run
    assert run is not None
    return run


def variables_of_ranks(ranks: int) -> list[dict[str, str]]:
    """What torchrun sets, for each rank."""
    world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    return [{**world, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def curve_of(run: RunDir) -> list[float]:
    return [record[key] for record in run.read_metrics() for key in ("loss", "grad_norm")]


def _be_rank(run: RunDir, variables: dict[str, str], failures: Any) -> None:
    import torch

    from ascendtune.core import log
    from ascendtune.train import attempt as training

    # A fork makes torch's thread pool unusable. The first thread that asks for it makes it anew; of several at once, as
    # those that load weights are, the others would find none.
    torch.set_num_threads(torch.get_num_threads())
    os.environ |= variables
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    log.set_up()
    training.draw = lambda run: None
    try:
        training.train(run, run.read())
    except BaseException as error:  # noqa: BLE001  # told by the parent
        failures.put("".join(traceback.format_exception(error))[-3000:])
        os._exit(1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
