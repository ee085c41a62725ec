"""Training on cores that other programs use, too: what brief waiting of its threads is worth.

    python benchmarks/busy_cores.py [--rounds 3]

Beside the training there is nothing, or one program on every core that never waits. `libgomp's` is the training with as
many turns of a waiting thread as libgomp makes where nothing is set; otherwise it is what `ascendtune train` sets.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import inputs
from measure import ASCENDTUNE, in_turn, median, run, spread, table, write_result
from peers.work import write_yaml

_SPINS = {"libgomp's": {"GOMP_SPINCOUNT": "300000"}, "ascendtune's": {}}
_STEPS, _WARM = 8, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        variants = {
            f"{spins}, {load}": partial(measure, Path(scratch), name, env, others)
            for load, others in (("idle cores", 0), ("busy cores", cores))
            for name, (spins, env) in enumerate(_SPINS.items())
        }
        figures = in_turn(variants, given.rounds)
    first = {load: median(figures[f"libgomp's, {load}"], "step_seconds") for load in ("idle cores", "busy cores")}
    rows = [
        [name, spread(runs, "step_seconds"), f"{median(runs, 'step_seconds') / first[name.partition(', ')[2]]:.2f}"]
        for name, runs in figures.items()
    ]
    write_result("busy-cores", table(["spins, load", "seconds of a step", "this / libgomp's"], rows), figures, {})


def measure(scratch: Path, number: int, env: dict[str, str], others: int) -> dict[str, Any]:
    data = inputs.make("m15")
    recipe = write_yaml(
        scratch / "recipe.yaml",
        {
            "model": {"path": str(data.model)},
            "data": {"train": {"path": str(data.alpaca), "format": "alpaca"}, "max_length": 512},
            "optim": {"max_steps": _STEPS},
        },
    )
    name = f"run-{number}-{others}"
    with running(others):
        threads = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
        run([ASCENDTUNE, "train", recipe, f"name={name}"], directory=scratch, env={**threads, **env})
    made = max((scratch / "runs").glob(f"{name}*"), key=lambda path: path.stat().st_mtime)
    steps = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    return {"step_seconds": sum(step["seconds"]["step"] for step in steps[_WARM:]) / (_STEPS - _WARM)}


@contextmanager
def running(others: int) -> Iterator[None]:
    """`others` programs that never wait."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


if __name__ == "__main__":
    main()
