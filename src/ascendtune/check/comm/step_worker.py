"""One rank of a training whose steps are profiled: `step_worker KIND DIRECTORY WORK`, started by torchrun.

WORK is JSON: {"run": a prepared run directory, "timeout_seconds": …}. The training is `ascendtune.train.worker`; its
calls of torch.distributed are wrapped here. The first steps are timed normally. Then a collective starts only when
the device has finished all earlier work and all ranks have arrived: the time until then is waiting, the time from then
on communication, and the rest of the step is compute. The process exits before anything is saved.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ascendtune.check.comm.notes import notes_path
from ascendtune.check.comm.step import PLAIN, STEPS, WARM_UP
from ascendtune.check.comm.world import AbsentRanksError, World
from ascendtune.core.records import LineWriter
from ascendtune.machine.peers import init_method
from ascendtune.machine.torch_backend.find import open_device
from ascendtune.machine.visible import Kind

_EXCHANGES = 20
_COLLECTIVES = (
    *("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all_single", "all_to_all"),
    *("all_gather_into_tensor", "reduce_scatter_tensor", "all_gather_single", "reduce_scatter_single"),
)


class TrainingWorld(World):
    """The ranks, from within a training process."""

    def exchange(self, word: str) -> list[str]:
        # Exit at once if ranks are absent: the training loop would treat an exception as its own failure.
        try:
            return super().exchange(word)
        except AbsentRanksError as error:
            self.notes.write({"absent": error.ranks})
            os._exit(1)


class StepTimer:
    """The time of this rank's steps, by part."""

    def __init__(self, world: TrainingWorld) -> None:
        self.world = world
        self._steps = self._updates = 0
        self._waiting = self._communication = self._exchange_seconds = 0.0
        self._least_exchange_seconds = 0.0
        self._inside = False
        self._step_start = time.perf_counter()

    def install(self) -> None:
        """Wrap the collectives of torch.distributed and the optimizer's step."""
        for name in _COLLECTIVES:
            if hasattr(dist, name):
                setattr(dist, name, self._timed(getattr(dist, name)))
        register_optimizer_step_pre_hook(self._begin_update)
        register_optimizer_step_post_hook(self._end_update)

    def _begin_update(self, *_: Any) -> None:
        self._updates += 1

    def _end_update(self, *_: Any) -> None:
        self._updates -= 1
        # An optimizer may consist of others, whose steps are parts of its own.
        if self._updates == 0:
            self._end_of_step()

    @property
    def _measures_parts(self) -> bool:
        return self._steps >= WARM_UP + PLAIN

    def _timed(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(collective)
        def call(*arguments: Any, **named: Any) -> Any:
            # Some collectives call others.
            if not self._measures_parts or self._inside:
                return collective(*arguments, **named)
            self._inside = True
            try:
                arrived = self._now()
                self.world.exchange("")
                began = time.perf_counter()
                work = collective(*arguments, **named)
                if work is not None:
                    work.wait()
                exchanging = min(self._least_exchange_seconds, began - arrived)
                self._exchange_seconds += exchanging
                self._waiting += began - arrived - exchanging
                self._communication += self._now() - began
            finally:
                self._inside = False
            return work

        return call

    def _end_of_step(self) -> None:
        now, sort = self._now(), "apart" if self._measures_parts else "plain"
        self._steps += 1
        if self._steps > WARM_UP:
            whole = now - self._step_start - self._exchange_seconds
            parts = {"waiting": self._waiting, "communication": self._communication}
            self.world.notes.write({sort: {"all": whole, **parts}})
        if self._steps == STEPS:
            self.world.begin("the end")
            self.world.notes.write({"done": True})
            os._exit(0)
        if self._steps == WARM_UP + PLAIN:
            self._least_exchange_seconds = self._time_of_an_exchange()
        self._waiting = self._communication = self._exchange_seconds = 0.0
        self.world.begin(f"step {self._steps + 1}")
        self._step_start = self._now()

    def _time_of_an_exchange(self) -> float:
        """Seconds that an exchange takes if no rank waits; subtracted from the waiting time."""
        seconds = []
        for _ in range(_EXCHANGES):
            start = time.perf_counter()
            self.world.exchange("")
            seconds.append(time.perf_counter() - start)
        return median(seconds)

    def _now(self) -> float:
        self.world.device.synchronize()
        return time.perf_counter()


def main(kind: str, directory: str, work: str) -> None:
    """Train and measure. The outcome is in the notes and in the run directory."""
    rank, task = int(os.environ["RANK"]), json.loads(work)
    limit = timedelta(seconds=task["timeout_seconds"])
    device = open_device(cast("Kind", kind), int(os.environ["LOCAL_RANK"]))
    size = int(os.environ["WORLD_SIZE"])
    rendezvous_store, _, _ = next(rendezvous(init_method(), rank, size, timeout=limit))
    rendezvous_store.set_timeout(limit)
    store = dist.PrefixStore("ascendtune-step", rendezvous_store)
    world = TrainingWorld(rank, size, device, store, LineWriter(notes_path(Path(directory), rank)), limit)
    world.notes.write({"backend": device.collective_backend})
    world.begin("the start")
    # Loading the model may take longer than the limit.
    world.rest()
    StepTimer(world).install()
    sys.argv = ["ascendtune.train.worker", task["run"]]
    try:
        runpy.run_module("ascendtune.train.worker", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        world.notes.write({"error": f"the training exited with code {ended.code}"})
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
