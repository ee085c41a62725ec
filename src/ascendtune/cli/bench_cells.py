"""Trains the cells of `ascendtune bench`, and records their measurements."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ascendtune.check.bench.cells import RECIPE_STRATEGY, Cell, CellResult
from ascendtune.check.bench.measure import DeviceSamples, read_repeat
from ascendtune.check.bench.show import BenchSettings
from ascendtune.cli.child_training import error_in, train_briefly
from ascendtune.core import log
from ascendtune.core.errors import CheckFailed, InputError, MachineError, translated_disk_errors
from ascendtune.core.foreign_json import value_at
from ascendtune.core.locks import file_lock
from ascendtune.core.ownership import require_own
from ascendtune.core.records import read_json_record, write_json
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import count_of
from ascendtune.machine.inventory import Accelerator
from ascendtune.machine.snapshot import take_snapshot
from ascendtune.machine.visible import VisibleDevices
from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import UNTRACKED

_FILE = "bench.json"
_PROFILED_STEPS = 2
_MOST_SERIES = 1000


@dataclass(frozen=True)
class BenchedRecipe:
    """A recipe, its file, and the keys that the user changes."""

    file: Path
    overrides: list[str]
    recipe: Recipe

    @classmethod
    def load(cls, file: Path, overrides: list[str]) -> BenchedRecipe:
        return cls(file, overrides, Recipe.load(file, overrides))


@dataclass
class Bench:
    """The directory of a benchmark, with the results so far."""

    directory: Path
    identity: str
    """Hash of recipe, device and number of steps: results with another one are not mixed in."""
    benched: BenchedRecipe
    setting: BenchSettings
    results: dict[Cell, CellResult]

    @classmethod
    @contextmanager
    def open(cls, directory: Path | None, benched: BenchedRecipe, setting: BenchSettings) -> Iterator[Bench]:
        """The benchmark in `directory`, or in the next free one beside the runs of the recipe; locked for other
        processes.

        Raises:
            InputError: the directory contains another benchmark.
            MachineError: another process uses the directory, or it cannot be written, or bench.json is damaged.
        """
        recipe = benched.recipe
        identity = _identity(recipe, setting)
        place = directory or _free(recipe.run_directory().parent, f"{recipe.name}-bench", identity)
        with translated_disk_errors(place, "making the directory of the benchmark"):
            (place / "log").mkdir(parents=True, exist_ok=True)
        require_own(place, remedy="give another directory: --output DIR")
        with file_lock(place / ".lock", wait=False) as is_ours:
            if not is_ours:
                raise MachineError(
                    "another process is running this benchmark",
                    code="bench-in-use",
                    remedy="wait for it, or give another --output",
                    where=place,
                )
            kept = _read(place)
            if kept and kept.get("identity") != identity:
                raise InputError(
                    "this directory contains another benchmark: of another recipe, device, number of steps or version",
                    code="bench-differs",
                    remedy="give another --output, or remove the directory",
                    where=place,
                )
            cells = kept.get("cells", [])
            found = [CellResult.of(each) for each in (cells if isinstance(cells, list) else [cells])]
            yield cls(place, identity, benched, setting, {each.cell: each for each in found})

    def write(self, summary: dict[str, Any] | None = None) -> None:
        """Replace bench.json.

        Args:
            summary: the tables, once all cells are measured.
        """
        content = summary or {"setting": asdict(self.setting)}
        cells = [each.as_plain() for each in self.results.values()]
        write_json(self.directory / _FILE, {"identity": self.identity, **content, "cells": cells})


def measure(bench: Bench, cells: Sequence[Cell], visible: VisibleDevices) -> list[CellResult]:
    """Train each cell as often as the setting requires, minus existing measurements; results in that order.

    All cells are trained once before the first is trained again, so that a drift of the machine is seen as spread. A
    cell that fails is not trained again in this call.
    """
    results = [bench.results.setdefault(each, CellResult(each)) for each in cells]
    for each in results:
        each.failure = None
    times = bench.setting.repeats
    missing = sum(max(0, times - len(each.repeats)) for each in results)
    done = 0
    if missing < times * len(results):
        log.say(f"{times * len(results) - missing} of {count_of(times * len(results), 'training')} measured already")
    try:
        for number in range(1, times + 1):
            for result in results:
                if len(result.repeats) >= number or result.failure is not None:
                    continue
                done += 1
                log.say(f"training {done} of {missing}: {result.cell.name}, repeat {number}")
                _train(bench, result, number, visible)
                bench.write()
    except KeyboardInterrupt:
        log.say(f"stopped: the measurements are in {bench.directory / _FILE}; the same command continues from there")
        raise
    return results


def _train(bench: Bench, result: CellResult, number: int, visible: VisibleDevices) -> None:
    """Train a cell once, and add its measurements, or the reason of its failure, to `result`."""
    cell, setting, benched = result.cell, bench.setting, bench.benched
    steps = range(setting.warm_up + 1, setting.warm_up + setting.steps + 1)
    name = f"{cell.name}-r{number}"
    # The profiler starts one step before the first one that it records.
    first_profiled = steps.stop + 1
    last = first_profiled + _PROFILED_STEPS - 1
    words = [
        *benched.overrides,
        *([] if cell.strategy == RECIPE_STRATEGY else [f"parallel.strategy={cell.strategy}"]),
        f"batch.per_device={cell.per_device}",
        f"batch.accumulate={cell.accumulate}",
        "optim.epochs=null",
        f"optim.max_steps={last}",
        f"track.every_steps={min(benched.recipe.track.every_steps, max(1, setting.steps // 2))}",
        *UNTRACKED,
        f"profile.steps={first_profiled}-{last}",
        "profile.only=true",
        # The first training explains the cell: a slow rank is detected only by comparison with the others.
        f"profile.ranks={'null' if number == 1 else '[0]'}",
        "checkpoint.resume=never",
        f"name={name}",
        f"run_dir={bench.directory}/runs/{{name}}",
    ]
    samples = DeviceSamples(lambda: _devices_of_job(visible, cell.devices), steps)
    output = bench.directory / "log" / f"{name}.log"
    watch = samples.take if visible.vendor.is_accelerator else None
    code, run = train_briefly(benched.file, words, devices=cell.devices, log=output, watch=watch)
    if code or run is None:
        result.failure = _failure(run, output)
        log.warn(f"{cell.name} could not be trained: {result.failure}")
        return
    try:
        result.repeats.append(repeat := read_repeat(RunDir(run), steps, samples))
    except CheckFailed as error:
        result.failure = error.what
        return
    log.say(f"  {repeat.tokens_per_second:,.0f} tokens/s")


def _devices_of_job(visible: VisibleDevices, count: int) -> list[Accelerator]:
    """The first `count` visible devices, which a job would use, as the vendor's tool reports them now."""
    ids = visible.ids[:count]
    return [each for each in take_snapshot().devices if str(each.logical_id) in ids]


def _failure(run: Path | None, output: Path) -> str:
    """The reason why a training failed: the cause in run.json, else the error that it printed."""
    what = value_at(RunDir(run).read(), "exit_cause", "what") if run else None
    return what if isinstance(what, str) else error_in(output)


def _identity(recipe: Recipe, setting: BenchSettings) -> str:
    content = recipe.model_dump(mode="json")
    measured = {key: value for key, value in content.items() if key not in ("name", "run_dir", "profile", "checkpoint")}
    where = {"host": socket.gethostname(), "device": setting.device, "version": setting.version}
    values = {"recipe": measured, **where, "steps": setting.steps, "warm_up": setting.warm_up}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _read(directory: Path) -> dict[str, Any]:
    path = directory / _FILE
    remedy = "remove it: the cells are measured again; or give another --output"
    return read_json_record(path, own=True, remedy=remedy) if path.exists() else {}


def _free(parent: Path, name: str, identity: str) -> Path:
    """The directory of this benchmark: the first of its series that contains it, or is empty."""
    for number in range(1, _MOST_SERIES):
        place = parent / (name if number == 1 else f"{name}-{number}")
        if _read(place).get("identity", identity) == identity:
            return place
    raise InputError(
        f"{parent} contains {_MOST_SERIES} benchmarks of this recipe",
        code="too-many-benchmarks",
        remedy="remove old ones, or give --output",
    )
