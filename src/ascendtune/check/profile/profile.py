"""Reads profiles: the traces of a run, a directory or a file, one rank each, with the facts beside them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascendtune.check.profile.ascend import (
    OUTPUT,
    ascend_outputs,
    is_of_folder,
    read_ascend,
    read_ascend_database,
)
from ascendtune.check.profile.memory import RECORDED_CATEGORIES, MemoryUse, memory_use
from ascendtune.check.profile.split import Split, split_of
from ascendtune.check.profile.trace import ProfileTrace, read_trace
from ascendtune.core.errors import InputError
from ascendtune.core.foreign_json import is_number, object_of, read_json_object, value_at
from ascendtune.core.rundir import RunDir
from ascendtune.core.suggest import run_suggestion

_TRACE = re.compile(r"(.*?)(\.pt)?(\.trace)?\.json(\.gz)?")
_RANK = re.compile(r"rank[_-]?(\d{1,6})")
_INFO = re.compile(r"profiler_info_(\d{1,6})\.json")
_DATABASE = re.compile(r"ascend_pytorch_profiler_(\d{1,6})\.db")
MOST_RANKS = 1024
_MOST_WORLD = 1_000_000
_MOST_RATIO = 1e30
_MOST_BYTES = 1e15
_LONGEST_FACTS = 1 << 16
"""Bytes."""


@dataclass(frozen=True)
class RankProfile:
    """The profile of one rank.

    Attributes:
        facts: recorded by `train` beside the trace; empty for a trace of another program.
        memory: None if no allocation was recorded.
    """

    rank: int
    path: Path
    split: Split
    facts: dict[str, Any] = field(default_factory=dict)
    memory: MemoryUse | None = None

    @property
    def step_seconds(self) -> float:
        """Mean time of a step."""
        return self.split.total / self.split.steps

    @property
    def waited_seconds(self) -> float:
        """Exposed communication of a step; shortest on the rank that the others wait for."""
        return sum(self.split.communication.values()) / self.split.steps

    def model_flops(self) -> float | None:
        """FLOP/s of the model achieved by this rank, without recomputation; None if unknown."""
        return self._flops("flops_per_token")

    def _flops(self, name: str) -> float | None:
        """FLOP/s of this rank; the FLOPs per token are the fact `name`."""
        tokens, per_token = self.facts.get("tokens_per_step"), self.facts.get(name)
        if not is_number(tokens, 1, _MOST_RATIO) or not is_number(per_token, 1, _MOST_RATIO):
            return None
        world_size = self.facts.get("world_size")
        ranks = world_size if type(world_size) is int and 0 < world_size <= _MOST_WORLD else 1
        return float(tokens) * float(per_token) / ranks / self.step_seconds

    def utilisation(self) -> float | None:
        """`model_flops` as a share of the peak (MFU, Chowdhery et al. 2022, appendix B); None if unknown."""
        return self._share_of_peak("flops_per_token")

    def hardware_utilisation(self) -> float | None:
        """The same as `utilisation`, with recomputation and padding (HFU, Chowdhery et al. 2022, appendix B)."""
        return self._share_of_peak("computed_flops_per_token")

    def _share_of_peak(self, name: str) -> float | None:
        achieved, peak = self._flops(name), self.facts.get("peak_flops")
        return achieved / peak if achieved is not None and is_number(peak, 1, _MOST_RATIO) else None


def read_profile(path: Path) -> list[RankProfile]:
    """The profile in a run directory, in a directory of traces, or in one trace, ordered by rank.

    Raises:
        InputError: there is none, or a trace cannot be read.
    """
    if not path.exists():
        raise InputError(
            "no such file or directory",
            code="path-missing",
            remedy=run_suggestion(
                path, "give a recipe, a run, a directory of traces or a trace; `ascendtune runs list` shows runs"
            ),
            where=path,
        )
    if is_of_folder(path):
        path = path.parent
    if path.suffix == ".db" and path.is_file():
        match = _DATABASE.fullmatch(path.name)
        return [RankProfile(int(match[1]) if match else 0, path, read_ascend_database(path))]
    if path.is_file():
        return [_read_rank(path, 0, {})]
    run = RunDir(path) if (path / "run.json").is_file() else None
    directory = run.profile if run is not None else path
    if outputs := ascend_outputs(directory):
        return sorted((_read_ascend_rank(each, at) for at, each in enumerate(outputs)), key=lambda each: each.rank)
    tokens = _tokens_by_step(run) if run is not None else {}
    traces = [_read_rank(each, at, tokens) for at, each in enumerate(_traces_in(directory))]
    return sorted(traces, key=lambda each: each.rank)


def _traces_in(directory: Path) -> list[Path]:
    """The traces of torch.profiler in a directory, ordered by name.

    Raises:
        InputError: there are none, or too many.
    """
    files = sorted(each for each in directory.glob("*.json*") if _is_trace(each)) if directory.is_dir() else []
    if not files:
        raise InputError(
            "this directory contains no profile",
            code="no-profile",
            remedy="record one: `ascendtune profile RECIPE`, or train with profile.steps=5-8",
            where=directory,
        )
    if len(files) > MOST_RANKS:
        raise InputError(
            f"the directory contains {len(files):,} traces, more than {MOST_RANKS:,}",
            code="too-many-files",
            remedy="give the directory of one profile",
            where=directory,
        )
    return files


def _read_ascend_rank(output: Path, position: int) -> RankProfile:
    """A rank in a folder of torch_npu's profiler; the folder around it is named after the worker."""
    folder = output.absolute().parent if output.name == OUTPUT else output.absolute()
    match = _RANK.search(folder.name)
    # The name of torch_npu's own facts contains the rank.
    recorded = [int(each[1]) for path in folder.glob("profiler_info_*.json") if (each := _INFO.fullmatch(path.name))]
    rank = int(match[1]) if match else recorded[0] if recorded else position
    beside = folder.with_name(f"rank_{rank}.json")
    return RankProfile(rank, output, read_ascend(output), read_json_object(beside) if beside.is_file() else {})


def _is_trace(path: Path) -> bool:
    """Whether a file is a trace, by its name: neither this project's report nor the facts beside a trace."""
    if not _TRACE.fullmatch(path.name) or re.fullmatch(r"\..*|summary\.json", path.name):
        return False
    # Traces of other programs may have the name of this project's facts.
    return not re.fullmatch(r"rank_\d+\.json", path.name) or _has_events(path)


def _has_events(path: Path) -> bool:
    """Whether a file with the name of the facts, which are short, is a trace of torch.profiler."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        beginning = file.read(_LONGEST_FACTS)
    return b'"traceEvents"' in beginning or len(beginning) == _LONGEST_FACTS


def _read_rank(file: Path, position: int, tokens: dict[int, float]) -> RankProfile:
    """Read one trace of torch.profiler.

    Args:
        position: among the traces of a directory; used as the rank if neither name nor trace has it.
    """
    trace = read_trace(file)
    match = _RANK.search(file.name)
    recorded = int(match[1]) if match else _recorded_rank(trace)
    rank = position if recorded is None else recorded
    beside = file.with_name(f"rank_{rank}.json")
    own_facts = trace.values.get("ascendtune")
    facts = read_json_object(beside) if beside != file and beside.is_file() else {}
    if isinstance(own_facts, dict):
        facts = {**facts, **own_facts}
    split = split_of(trace)
    first = facts.get("first_step")
    if isinstance(first, int) and tokens:
        counted = [tokens[step] for step in range(first, first + split.steps) if step in tokens]
        if counted:
            facts = {**facts, "tokens_per_step": sum(counted) / len(counted)}
    return RankProfile(
        rank, file, split, facts, memory_use(trace.memory_of_device(), split.windows, _bytes_before(facts))
    )


def _recorded_rank(trace: ProfileTrace) -> int | None:
    """The rank that torch.profiler has recorded; None if the program was not distributed."""
    rank = value_at(trace.values, "distributedInfo", "rank")
    return rank if type(rank) is int and 0 <= rank < _MOST_WORLD else None


def _bytes_before(facts: dict[str, Any]) -> dict[str, int]:
    """Category -> bytes before the profile, as recorded by `train`."""
    recorded = object_of(facts.get("held_bytes"))
    return {name: int(recorded[name]) for name in RECORDED_CATEGORIES if is_number(recorded.get(name), 1, _MOST_BYTES)}


def _tokens_by_step(run: RunDir) -> dict[int, float]:
    """Recorded step -> tokens of all ranks in a step, averaged since the previous record."""
    tokens, before = {}, 0
    for record in run.read_metrics():
        step, count = record.get("step"), record.get("tokens")
        if isinstance(step, int) and is_number(count, 1, _MOST_RATIO):
            tokens[step] = float(count) / max(1, step - before)
            before = step
    return tokens
