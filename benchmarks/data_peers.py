"""Data preparation beside peers: 50,000 rows from the file to tokens and labels on disk, nothing cached, one process.

    python benchmarks/data_peers.py [--rounds 3] [--rows 50000]

Ours is the whole command `ascendtune train RECIPE --prepare`, interpreter and imports included. Of a peer only the time
from its first `datasets.load_dataset` to the end of its last `Dataset.map` counts. How much of a bare tokenizer's speed
that is: data_preparation.py.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import inputs
from measure import Measured, in_turn, median, spread, table, write_result
from peers import ascendtune, llamafactory, trl
from peers.work import Work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=50_000)
    given = parser.parse_args()
    work = Work(inputs.make("m15", given.rows), steps=1)
    variants: dict[str, Callable[[Path], Measured]] = {
        "ascendtune, whole command": lambda at: ascendtune.train(work, at, cache=at / "cache", prepare=True),
        "LLaMA-Factory, load and maps": lambda at: llamafactory.train(work, at, cache=at / "cache"),
        "TRL, load and maps": lambda at: trl.train(work, at, cache=at / "cache"),
    }
    figures = in_turn({name: partial(measure, variant) for name, variant in variants.items()}, given.rounds)
    ours = median(next(iter(figures.values())), "cpu_seconds")
    rows = [
        [
            name,
            spread(runs, "cpu_seconds"),
            f"{given.rows / median(runs, 'cpu_seconds'):,.0f}",
            f"{median(runs, 'cpu_seconds') / ours:.2f}",
        ]
        for name, runs in figures.items()
    ]
    header = ["tool", "CPU-seconds", "rows per CPU-second", "this / first row"]
    peers = {"TRL": trl.VERSIONS, "LLaMA-Factory": llamafactory.VERSIONS}
    write_result("data-preparation-peers", table(header, rows), figures, peers)


def measure(variant: Callable[[Path], Measured]) -> dict[str, Any]:
    scratch = Path(tempfile.mkdtemp(prefix="benchmark-"))
    try:
        measured = variant(scratch)
        if measured.exit_code:
            raise SystemExit(f"exit code {measured.exit_code}:\n{measured.output[-3000:]}")
        of_maps = measured.data_cpu_seconds
        return {"cpu_seconds": measured.cpu_seconds if of_maps is None else of_maps}
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
