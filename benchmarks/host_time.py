"""What the loop itself costs: CPU-seconds per step on a model so small that the host is all that counts.

    python benchmarks/host_time.py [--rounds 5] [--steps 300]

One layer, hidden size 64, fp32, four padded rows a step, one thread. CPU-seconds from the end of one optimizer step to
the end of the next, over all steps but the first tenth: the median, and the mean, in which the checkpoints count too.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import inputs
from measure import Measured, in_turn, median, spread, table, trained, write_result
from peers import ascendtune
from peers.work import Work
from throughput import OURS, plain

_BARE = {
    "track.tensorboard": "false",
    "align.batch_hash": "false",
    "track.every_steps": 100,
    "checkpoint.every_steps": 100_000,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    work = Work(inputs.make("toy"), steps=given.steps, precision="fp32")
    ours = partial(ascendtune.train, work, cache=OURS)
    variants: dict[str, Callable[[Path], Measured]] = {
        "plain loop": lambda at: plain(work, at),
        "ascendtune, defaults": lambda at: ours(at),
        "ascendtune, recording every 100th step": lambda at: ours(at, overrides=_BARE),
        "transformers.Trainer": lambda at: plain(work, at, trainer=True),
    }
    figures = in_turn({name: partial(measure, variant) for name, variant in variants.items()}, given.rounds)
    rows = []
    for name, runs in figures.items():
        row = [name]
        for kind in ("milliseconds", "mean_milliseconds"):
            row += [spread(runs, kind), f"{median(runs, kind) / median(figures['plain loop'], kind):.2f}"]
        rows.append(row)
    columns = ["variant", "median CPU-milliseconds a step", "of the plain loop", "mean", "of the plain loop"]
    write_result("host-time", table(columns, rows), figures)


def measure(variant: Callable[[Path], Measured]) -> dict[str, Any]:
    measured = trained(variant)
    warm = measured.steps[len(measured.steps) // 10 :]
    between = [after.cpu_seconds - before.cpu_seconds for before, after in pairwise(warm)]
    return {"milliseconds": 1000 * statistics.median(between), "mean_milliseconds": 1000 * statistics.mean(between)}


if __name__ == "__main__":
    main()
