"""The cells on a simulated Ascend node: the real torch_npu, whose ranks its ProcessGroupHCCL joins.

All cells of a strategy and a number of ranks are trained by the same processes, one after another.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascendtune.core.errors import RecipeError
from ascendtune.core.rundir import RunDir
from matrix.cells import Outcome, Way, curve_of, prepared, variables_of_ranks

if TYPE_CHECKING:
    from ascend_node.cann.node import Node

# For one cell: a rank that waits for one that has failed is ended by its alarm.
_PATIENCE_SECONDS = 120
DEEPSPEED = Path(__file__).resolve().parents[2] / ".venv-deepspeed" / "packages"
"""What `make deepspeed-env` fills."""


def attempt_in_turn(node: Node, recipes: list[dict[str, Any]], ranks: int) -> list[Outcome]:
    """Train all of `recipes` in one process group; in another one what comes after a failure."""
    outcomes: dict[int, Outcome] = {}
    left: list[tuple[int, RunDir]] = []
    for number, values in enumerate(recipes):
        try:
            left.append((number, prepared(values)))
        except RecipeError as error:
            outcomes[number] = Outcome(None, refused=error.what)
    while left:
        # Gloo is there beside HCCL, for what the hosts tell each other.
        environments = [{**each, "GLOO_SOCKET_IFNAME": "lo"} for each in variables_of_ranks(ranks)]
        ended = node.run_ranks(train_in_turn, [run.path for _, run in left], environments=environments)
        trouble = "\n".join(each.err[-3000:] for each in ended if each.code)
        while left and _trained_on_npus(left[0][1], ranks):
            number, run = left.pop(0)
            outcomes[number] = Outcome(curve_of(run))
        if left:
            number, _ = left.pop(0)
            trouble = trouble or "it was not trained on NPUs"
        if trouble:
            outcomes[number] = Outcome(None, failed=trouble)
    return [outcomes[number] for number in range(len(recipes))]


def with_small_buckets(way: Way, directory: Path) -> dict[str, Any]:
    """The strategy of `way`; DeepSpeed's by a JSON file, with sizes that follow from the model's.

    Its own are for large models: two gigabytes for every engine, which a simulated device really fills, and a threshold
    below which stage 3 does not divide a weight, which is more than our largest has.
    """
    if way.parallel.get("strategy") != "deepspeed":
        return way.parallel
    zero = dict(way.parallel["deepspeed"])
    if "offload_optimizer" in zero:
        zero["offload_optimizer"] = {"device": zero["offload_optimizer"], "pin_memory": True}
    sizes = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    file = directory / f"{way}.json".replace(" ", "-")
    file.write_text(json.dumps({"zero_optimization": {**zero, **dict.fromkeys(sizes, "auto")}}))
    return {"strategy": "deepspeed", "deepspeed": {"config": str(file)}}


def _trained_on_npus(run: RunDir, ranks: int) -> bool:
    record = run.read()
    device = record.get("resolved", {}).get("device", {})
    return record["state"] == "finished" and (device["kind"], device["world_size"]) == ("npu", ranks)


def train_in_turn(paths: list[Path]) -> None:
    """On the node, as one rank: every run, without leaving the process group between them."""
    import torch.distributed as dist

    from ascendtune.core import log
    from ascendtune.train import attempt
    from ascendtune.train.strategy import deepspeed

    # Beside .venv, where it slows nothing else down.
    sys.path.append(str(DEEPSPEED))
    dist.init_process_group = partial(_join_once, dist.init_process_group)
    dist.destroy_process_group = lambda *args: None
    attempt.draw = lambda run: None  # type: ignore[assignment]
    log.set_up()
    for path in paths:
        signal.alarm(_PATIENCE_SECONDS)
        # The groups that DeepSpeed keeps have not ended here.
        deepspeed._STARTED = False
        attempt.train(RunDir(path), RunDir(path).read())


def _join_once(join: Callable[..., None], *arguments: Any, **named: Any) -> None:
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        return
    join(*arguments, **named)
    group = dist.group.WORLD
    assert group is not None
    joined_by = type(group._get_backend(torch.device("npu"))).__name__
    assert joined_by == "ProcessGroupHCCL", joined_by
