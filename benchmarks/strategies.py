"""The time of a step under each strategy, on two ranks of a CPU: FSDP beside DDP, in turn.

    python benchmarks/strategies.py [--rounds 5] [--steps 40]

Full fine-tuning of 15M parameters, bf16, packed rows, one thread a rank. Seconds of a step from metrics.jsonl over all
steps but the first five: the median, and the mean. Two ranks need two idle cores: `load` tells who was there besides.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import inputs
from measure import in_turn, median, spread, table, trained, write_result
from peers import ascendtune
from peers.work import Work
from throughput import OURS

_WARM_UP = 5
_STRATEGIES = ("ddp", "fsdp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()
    work = Work(inputs.make("m15"), steps=given.steps, packing=True)
    variants = {
        f"{name}, {length} tokens a rank": partial(measure, work.changed(max_length=length // 4), name)
        for length in (512, 2048)
        for name in _STRATEGIES
    }
    figures = in_turn(variants, given.rounds)
    write_result("strategies", report(figures), figures)


def measure(work: Work, strategy: str) -> dict[str, Any]:
    seconds: list[float] = []

    def train(scratch: Path) -> Any:
        measured = ascendtune.train(
            work, scratch, cache=OURS, overrides={"parallel.strategy": strategy}, words=["--devices", "2"]
        )
        records = map(json.loads, (scratch / "runs" / "run" / "metrics.jsonl").read_text().splitlines())
        seconds.extend(record["seconds"]["step"] for record in records)
        return measured

    trained(train)
    warm = seconds[_WARM_UP:]
    return {"seconds": statistics.median(warm), "mean_seconds": statistics.mean(warm)}


def report(figures: dict[str, list[dict[str, Any]]]) -> str:
    rows = []
    for name, runs in figures.items():
        of_ddp = figures[name.replace("fsdp", "ddp")]
        row = [name]
        for kind in ("seconds", "mean_seconds"):
            row += [spread(runs, kind, 3), f"{median(of_ddp, kind) / median(runs, kind):.2f}"]
        rows.append(row)
    return table(["variant", "median seconds a step", "speed beside DDP", "mean", "speed beside DDP"], rows)


if __name__ == "__main__":
    main()
