"""Profiles a few steps of a training, as requested by `profile.steps`."""

from __future__ import annotations

import json
import resource
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from ascendtune.core.errors import RecipeError
from ascendtune.core.log import say, warn
from ascendtune.core.records import write_json
from ascendtune.core.units import count_of
from ascendtune.machine.torch_backend.device import StepProfiler
from ascendtune.recipe.sections import ProfileSection
from ascendtune.train.memory_by_category import memory_by_category
from ascendtune.train.phases import Phases
from ascendtune.train.profile.ranges import garbage_collection_ranges, host_sync_ranges, module_ranges, named_range
from ascendtune.train.strategy.base import Strategy


def require_profiled_steps(section: ProfileSection, total_steps: int, strategy: Strategy) -> None:
    """Check that the run has a step and a rank in `section`; otherwise warn.

    Raises:
        RecipeError: it has none, and the run would only be made for its profile.
    """
    if not (steps := section.window()):
        return
    if steps[0] > total_steps:
        problem = f"profile.steps begins with step {steps[0]}, but the run has {count_of(total_steps, 'step')}"
        remedy = (
            f"profile earlier steps, such as profile.steps={max(1, total_steps - 3)}-{total_steps}, or train longer"
        )
    elif not any(rank in range(strategy.world_size) for rank in section.profiled_ranks(strategy.world_size)):
        problem = f"profile.ranks names no rank of this run, which has {count_of(strategy.world_size, 'rank')}"
        remedy = f"name ranks from 0 to {strategy.world_size - 1}, or leave profile.ranks out"
    else:
        return
    if section.only:
        raise RecipeError(problem, code="nothing-to-profile", remedy=remedy)
    if strategy.is_main:
        warn(f"{problem}: nothing is profiled; {remedy}")


class StepProfile:
    """Runs the device's profiler in the steps of `section`; nothing is installed in other steps.

    Args:
        directory: directory of the run's profiles.
        model: the trained model; its norms, attention and feed-forward modules get ranges.
        optimizer: optimizer of its weights; its memory is recorded with `profile.memory`.
        facts: facts of the run for the report that the trace does not contain.
    """

    def __init__(
        self,
        directory: Path,
        section: ProfileSection,
        strategy: Strategy,
        model: nn.Module,
        optimizer: Any,
        phases: Phases,
        facts: dict[str, Any],
    ) -> None:
        self._directory = directory
        self._section = section
        self._strategy = strategy
        self._model = model
        self._optimizer = optimizer
        self._phases = phases
        self._facts = facts
        self._steps = section.window() if strategy.rank in section.profiled_ranks(strategy.world_size) else range(0)
        self._profiler: StepProfiler | None = None
        self._ranges = ExitStack()
        self._facts_at_begin: dict[str, Any] = {}
        self._faults_at_begin = 0

    def begin_step(self, number: int, *, last: int) -> None:
        """Called before step `number` of `last`: starts the profiler one step early, because its start takes time."""
        if not self._steps or number > self._steps[-1]:
            return
        if self._profiler is None and number >= self._steps[0] - 1:
            first = max(number, self._steps[0])
            self._steps = range(first, min(self._steps[-1], last) + 1)
            if self._steps:
                self._start()
        if self._profiler is not None and number >= self._steps[0]:
            if number == self._steps[0]:
                # A device that is behind the host would still compute the previous step.
                self._strategy.device.synchronize()
            self._profiler.step()
            if number == self._steps[0]:
                # Not earlier: torch drops metadata that is added before the recording has begun.
                facts = self._facts_at_begin = self._of_rank()
                self._profiler.add_metadata_json("ascendtune", json.dumps(facts))
                # Also in a file beside the trace: torch_npu's traces have no place for it.
                write_json(self._directory / f"rank_{self._strategy.rank}.json", facts)
                self._ranges.enter_context(self._ranges_in_trace())
                if self._section.memory:
                    snapshot = self._directory / f"rank_{self._strategy.rank}.memory.pickle"
                    self._ranges.enter_context(self._strategy.device.memory_history(snapshot))
                self._faults_at_begin = _major_faults()

    def end_step(self, number: int) -> float:
        """Called after step `number`, with its metrics, evaluation and checkpoint; writes the profile after the last.

        Returns:
            Seconds that writing took; they do not count as training.
        """
        if self._profiler is None or number < self._steps[-1]:
            return 0.0
        start = time.perf_counter()
        self._strategy.device.synchronize()
        self.close()
        return time.perf_counter() - start

    def close(self) -> None:
        """End the profile that is being recorded, if any, and write it."""
        profiler, self._profiler = self._profiler, None
        self._ranges.close()
        if profiler is None:
            return
        self._phases.enter("profile")
        if self._facts_at_begin:
            # This number is known only at the end, when no facts can be added to the trace.
            facts = {**self._facts_at_begin, "major_faults": _major_faults() - self._faults_at_begin}
            write_json(self._directory / f"rank_{self._strategy.rank}.json", facts)
        profiler.stop()
        self._steps = range(0)
        if self._strategy.is_main:
            run = shlex.quote(str(self._directory.parent))
            say(f"the profile is in {self._directory}; `ascendtune profile {run}` shows it")

    def _start(self) -> None:
        self._directory.mkdir(exist_ok=True)
        rank = self._strategy.rank
        self._profiler = self._strategy.device.profiler(
            self._directory,
            f"rank_{rank}",
            steps=len(self._steps),
            stacks=self._section.stacks,
            memory=self._section.memory,
        )
        self._profiler.start()

    def _of_rank(self) -> dict[str, Any]:
        """Facts for the report, at the beginning of the first profiled step."""
        held_bytes = memory_by_category(self._model.parameters(), self._optimizer) if self._section.memory else {}
        return {**self._facts, "rank": self._strategy.rank, "first_step": self._steps[0], "held_bytes": held_bytes}

    @contextmanager
    def _ranges_in_trace(self) -> Iterator[None]:
        """Context in which phases, modules, and calls that wait for the device have names in the trace."""
        self._phases.make_range = lambda name: named_range("phase", name)
        try:
            with module_ranges(self._model), host_sync_ranges(), garbage_collection_ranges():
                yield
        finally:
            self._phases.make_range = None


def _major_faults() -> int:
    """Pages that this process had to wait for since its start, because they were on disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
