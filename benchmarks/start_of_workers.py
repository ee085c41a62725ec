"""From the command to the first instruction of the last of two workers, beside bare torchrun.

    python benchmarks/start_of_workers.py [--rounds 7]

The workers note the time before they import anything, and end. `ascendtune train` reads its recipe, finds its data in
the cache and makes a run directory on the way; `launch` does none of it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import inputs
from measure import ASCENDTUNE, in_turn, median, run, spread, table, write_result
from peers.work import write_yaml

_HOOK = Path(__file__).with_name("hook_start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        figures = in_turn(
            {name: partial(measure, command, Path(scratch)) for name, command in commands(Path(scratch)).items()},
            given.rounds,
        )
    bare = median(figures["torchrun"], "seconds")
    rows = [
        [name, spread(runs, "seconds"), f"{median(runs, 'seconds') / bare:.2f}", spread(runs, "cpu_seconds")]
        for name, runs in figures.items()
    ]
    header = ["command", "seconds to the workers", "this / torchrun", "CPU-seconds in all"]
    write_result("start-of-workers", table(header, rows), figures, {})


def commands(scratch: Path) -> dict[str, list[str | Path]]:
    data, worker = inputs.make("toy"), scratch / "worker.py"
    worker.write_text("")
    recipe = write_yaml(
        scratch / "recipe.yaml",
        {"model": {"path": str(data.model)}, "data": {"train": {"path": str(data.alpaca), "format": "alpaca"}}},
    )
    # Fills the cache of tokens.
    run([ASCENDTUNE, "train", recipe, "--prepare"], directory=scratch, env=_environment(scratch))
    return {
        "torchrun": [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"),
            *("--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", worker),
        ],
        "ascendtune launch": [ASCENDTUNE, "launch", "--devices", "2", "--", sys.executable, "-u", worker],
        "ascendtune train": [ASCENDTUNE, "train", recipe, "--devices", "2"],
    }


def measure(command: list[str | Path], scratch: Path) -> dict[str, Any]:
    beginnings = scratch / "beginnings"
    beginnings.unlink(missing_ok=True)
    shutil.rmtree(scratch / "runs", ignore_errors=True)
    done = run(command, directory=scratch, env=_environment(scratch))
    times = [float(line) for line in beginnings.read_text().split()]
    if len(times) != 2:
        raise SystemExit(f"{len(times)} workers began:\n{done.output[-3000:]}")
    return {"seconds": max(times) - done.began, "cpu_seconds": done.cpu_seconds}


def _environment(scratch: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": str(_HOOK),
        "BEGINNINGS": str(scratch / "beginnings"),
        "WORKER": str(scratch / "worker.py"),
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "XDG_STATE_HOME": str(scratch / "state"),
    }


if __name__ == "__main__":
    main()
