"""Kill runs and merges at their operations on files, for each strategy; nothing may be lost. `make kills`.

A run is killed before the N-th operation on a file of its run directory, and started again. It must resume from its
last complete checkpoint, and give bit by bit the losses and weights of a run that was not killed. A merge that is
killed leaves its target absent or complete.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kills.runs import Bench, Merged

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "kills.md"
CELLS = (("single", 0), *((name, rank) for name in ("ddp", "fsdp", "zero-2 × 2") for rank in (0, 1)), ("zero-3", 0))
"""Strategy, and the rank that is killed."""
PLACES = ("checkpoint", "export", "other files", "merge")
_HEAD = f"""# Kills

`make kills` writes this page. A process is killed (SIGKILL) before an operation on a file of its run directory:
create, open for writing, rename, remove, flush. The run is started again. It must resume from its last complete
checkpoint, and give bit by bit the losses and weights of a run that was not killed; nothing else may be left over.
A merge of the run's adapter that is killed leaves its target absent or complete.

Five steps of a tiny model with LoRA and dropout in fp32 on CPU, a checkpoint every second step, the newest one kept.
`ddp`, `fsdp` and `zero-2 × 2` have two ranks.
*checkpoint*: operations below `checkpoints/`; *export*: on the model that the run leaves; *other files*: the record of
the run, metrics, logs. `16 of 41`: kills that happened, of so many operations; those that are tried are spread evenly.

| {" | ".join(("strategy", "killed", *PLACES, "lost", "commit"))} |
|{"---|" * (len(PLACES) + 4)}
"""


@dataclass
class Cell:
    """A row of the page."""

    strategy: str
    rank: int
    kills: dict[str, str] = field(default_factory=dict)
    """Place -> kills of operations, in words."""
    lost: list[str] = field(default_factory=list)

    def row(self) -> str:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        columns = (f"rank {self.rank}", *(self.kills.get(place, "") for place in PLACES), str(len(self.lost)))
        return f"| {self.strategy} | {' | '.join(columns)} | {commit.stdout.strip()} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=0, metavar="N", help="at most N of each place (default: all)")
    parser.add_argument("--only", action="append", default=[], choices=sorted({name for name, _ in CELLS}))
    parser.add_argument("--write", action="store_true", help=f"write these rows of {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    lost = 0
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        make = _recipes(directory)
        for strategy, rank in CELLS:
            if arguments.only and strategy not in arguments.only:
                continue
            began = time.monotonic()
            cell = try_cell(strategy, rank, make, directory / f"{strategy} {rank}", arguments.points)
            lost += len(cell.lost)
            print(f"{cell.row()} {time.monotonic() - began:.0f} s", *cell.lost, sep="\n", flush=True)
            if arguments.write:
                write_row(cell.row())
    return 1 if lost else 0


def try_cell(strategy: str, rank: int, make: Callable[..., Any], directory: Path, points: int) -> Cell:
    """Kill `rank` at up to `points` operations of each place (0: at all); merges once for each strategy."""
    from kills.runs import Bench, Merged

    directory.mkdir()
    runs = Bench(directory, make, strategy)
    cell, operations = Cell(strategy, rank), runs.operations(rank)
    # Forked processes then share what is in memory now.
    gc.collect()
    gc.freeze()
    numbers: dict[str, list[int]] = {}
    for number, path in enumerate(operations, 1):
        numbers.setdefault(place_of(path), []).append(number)
    for place, found in numbers.items():
        cell.kills[place] = _kill(runs, rank, found, points, cell)
    if rank == 0:
        merged = Merged(runs.whole, directory / "merged" / "model", directory / "count")
        cell.kills["merge"] = _kill(merged, 0, range(1, len(merged.operations()) + 1), points, cell)
    return cell


def _kill(target: Bench | Merged, rank: int, numbers: Sequence[int], points: int, cell: Cell) -> str:
    from kills.points import Fault
    from kills.runs import spread

    tried = [numbers[each - 1] for each in spread(len(numbers), points)] if 0 < points < len(numbers) else numbers
    kills = 0
    for number in tried:
        try:
            kills += target.check(Fault("kill", number, rank))
        except AssertionError as error:
            cell.lost.append(f"{cell.strategy}, rank {rank}, operation {number}: {error}")
            target.clear()
    return f"{kills} of {len(numbers)}"


def place_of(path: str) -> str:
    """Where an operation belongs, from the path below the run directory or the one above it."""
    parts = set(path.split("/"))
    if "checkpoints" in parts:
        return "checkpoint"
    return "export" if any(re.fullmatch(r"model|\.model\..+", part) for part in parts) else "other files"


def write_row(row: str) -> None:
    """Put a row into the page, in the place of the one with the same strategy and rank."""
    rows = [line for line in _rows() if line.split("|")[1:3] != row.split("|")[1:3]]
    order = [f"| {strategy} | rank {rank} |" for strategy, rank in CELLS]
    rows = sorted([*rows, row], key=lambda line: next(at for at, each in enumerate(order) if line.startswith(each)))
    kills = sum(int(number) for line in rows for number in re.findall(r"(\d+) of \d+", line))
    lost = sum(int(line.split("|")[-3]) for line in rows)
    PAGE.write_text(_HEAD + "\n".join(rows) + f"\n\nTogether {kills} kills; {lost} lost something.\n")


def _rows() -> Iterator[str]:
    if PAGE.is_file():
        starts = tuple(f"| {strategy} | rank {rank} |" for strategy, rank in CELLS)
        yield from (line for line in PAGE.read_text().splitlines() if line.startswith(starts))


def _recipes(directory: Path) -> Callable[..., Any]:
    """What makes a recipe in fp32, padded, four rows a step, with changes; prepares this process for it."""
    os.environ |= {"XDG_CACHE_HOME": str(directory / "cache"), "XDG_STATE_HOME": str(directory / "state")}
    import deepspeed  # noqa: F401  # before processes are forked

    from ascendtune.train import attempt
    from matrix.cells import write_rows
    from tiny_model import write_tiny_model

    # Drawing takes longer than these runs, and writes nothing that a later start reads.
    attempt.draw = lambda run: None
    values = {
        "model": {"path": str(write_tiny_model(directory / "tiny"))},
        "data": {"train": str(write_rows(directory)["conversations"]), "packing": False, "max_length": 128},
        "batch": {"per_device": 4},
        "precision": "fp32",
        "track": {"tensorboard": False},
    }
    return partial(_recipe, values)


def _recipe(values: dict[str, Any], **changes: Any) -> Any:
    from ascendtune.recipe.recipe import Recipe

    return Recipe.check({**values, **changes})


if __name__ == "__main__":
    sys.exit(main())
