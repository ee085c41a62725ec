"""Continues a recording with a resumed training, and claims its directory for one training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from ascendtune.core.files import write_atomically
from ascendtune.core.foreign_json import read_json_object
from ascendtune.core.log import warn
from ascendtune.core.replaced import replaced
from ascendtune.core.rundir import RunDir
from ascendtune.train.recording.request import METRICS, RESUMED


class LoadedOptimizers:
    """Optimizers that loaded a state: it contains the number of updates that the training has made."""

    def __init__(self) -> None:
        self._optimizers: WeakSet[Any] = WeakSet()

    @contextmanager
    def tracked(self) -> Iterator[None]:
        """Context in which optimizers that load a state are added."""
        load = torch.optim.Optimizer.load_state_dict

        def load_state_dict(optimizer: Any, *arguments: Any, **named: Any) -> None:
            load(optimizer, *arguments, **named)
            self._optimizers.add(optimizer)

        with replaced(torch.optim.Optimizer, load_state_dict=load_state_dict):
            yield

    def updates(self, trained: Collection[nn.Parameter]) -> int | None:
        """The number of updates in the loaded state of these parameters; None if no state has it."""
        states = (each.state.get(parameter, {}) for each in self._optimizers for parameter in trained)
        return max((int(state["step"]) for state in states if "step" in state), default=None)


def claim(directory: Path, *, resumes: bool) -> bool:
    """Claim `directory` for the training of this process; False if another one of the same command has it."""
    directory.mkdir(parents=True, exist_ok=True)
    continues = resumes and (directory / METRICS).exists()
    try:
        (directory / (RESUMED if continues else METRICS)).open("xb").close()
    except FileExistsError:
        warn(f"a second training is not recorded: {directory} already contains one")
        return False
    return True


def continue_recording(
    directory: Path, updates: int | None, weights_hash: str, *, counts_skipped: bool = False
) -> int | None:
    """Number of the first step of a resumed training, from 1; recorded steps from it on are removed.

    If the number of updates is unknown, the training continues after the last recorded step, unless its weights are
    those at the start of the recorded training.

    Args:
        updates: number of updates made before; None if unknown.
        weights_hash: hash of the present weights, as in start_weights.json.
        counts_skipped: whether `updates` includes steps without an update, as in DeepSpeed's engine.

    Returns:
        None if some updates were not recorded.
    """
    records = [each for each in RunDir(directory).read_metrics() if isinstance(each.get("step"), int)]
    if not records:
        return (updates or 0) + 1
    last: int = records[-1]["step"]
    if updates is None:
        first = last + 1
    else:
        first = updates + 1 if counts_skipped else _first_step(records, updates)
    start = directory / "start_weights.json"
    if updates is None and start.is_file() and read_json_object(start).get("hash") == weights_hash:
        first = 1
    if first > last:
        return first if first == last + 1 else None
    warn(f"the training continued from step {first - 1}: steps {first} to {last} are recorded again")
    earlier = [each for each in records if each["step"] < first]
    write_atomically(directory / METRICS, "".join(json.dumps(each) + "\n" for each in earlier))
    for step in range(first, last + 1):
        shutil.rmtree(directory / "dump" / f"step-{step:07d}", ignore_errors=True)
    return first


def _first_step(records: list[dict[str, Any]], updates: int) -> int:
    """The step after `updates` updates; steps that a GradScaler skipped have no gradient norm."""
    steps = [each["step"] for each in records if each.get("grad_norm") is not None]
    recorded = updates - (records[0]["step"] - 1)
    first: int = steps[recorded - 1] + 1 if 0 < recorded <= len(steps) else updates + 1
    skipped = {each["step"] for each in records} - set(steps)
    while recorded > 0 and first in skipped:
        first += 1
    return first
