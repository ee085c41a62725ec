"""What it costs that somebody looks whether a training hangs.

    python benchmarks/watcher.py [--seconds 120] [--rounds 5]

While a 15M-parameter model trains: CPU-seconds of the process that watches, and of the workers. On one device it is
a small process beside the worker, start-up and imports included; on two it is the command itself, which waits for
torchrun and looks meanwhile, from the first step on. Then the way to the first step, with that process and without it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import inputs
import psutil
from measure import ASCENDTUNE, in_turn, median, run, spread, table, write_result
from peers.venv import cache_directory
from peers.work import write_yaml

_WITHOUT = """
import sys
from ascendtune.job.backend import local
if sys.argv.pop(1) == "without":
    local._start_watcher = lambda *_: None
from ascendtune.cli.main import main
main()
"""
_ENVIRONMENT = {"XDG_CACHE_HOME": str(cache_directory() / "ours"), "OMP_NUM_THREADS": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120, help="of training, for each number of devices")
    parser.add_argument("--rounds", type=int, default=5, help="of the way to the first step")
    given = parser.parse_args()
    first_step("with")  # fills the cache of data
    trained = in_turn({f"{n} device{'s' * (n > 1)}": partial(watched, n, given.seconds) for n in (1, 2)}, 1)
    started = in_turn({f"first step, {how} it": partial(first_step, how) for how in ("with", "without")}, given.rounds)
    write_result("watcher", report(trained, started), trained | started)


def watched(devices: int, seconds: float) -> dict[str, Any]:
    with _place() as (scratch, recipe):
        argv = [ASCENDTUNE, "train", recipe, "optim.max_steps=1000000", "--devices", str(devices)]
        with (scratch / "output").open("w") as out:
            command = subprocess.Popen(argv, cwd=scratch, env={**os.environ, **_ENVIRONMENT}, stdout=out, stderr=out)
        try:
            beats = _beats(scratch, devices)
            workers = [psutil.Process(beat["pid"]) for beat in beats]
            watcher = psutil.Process(command.pid)
            if devices == 1:
                (watcher,) = [
                    each for each in watcher.children() if "ascendtune.job.hang.watcher_process" in each.cmdline()
                ]
            before = [_cpu_seconds(each) if devices > 1 else 0.0 for each in (watcher, *workers)]
            time.sleep(seconds)
            after = [_cpu_seconds(each) for each in (watcher, *workers)]
            memory = watcher.memory_full_info()
        finally:
            command.send_signal(signal.SIGINT)
            command.wait()
    watching, *training = [end - begin for begin, end in zip(before, after, strict=True)]
    return {
        "watcher_cpu_seconds": watching,
        "training_cpu_seconds": sum(training),
        "share": watching / sum(training),
        "watcher_rss_bytes": memory.rss,
        "watcher_own_bytes": memory.uss,
    }


def first_step(how: str) -> dict[str, Any]:
    with _place() as (scratch, recipe):
        argv = [sys.executable, "-c", _WITHOUT, how, "train", recipe, "optim.max_steps=1"]
        done = run(argv, directory=scratch, env=_ENVIRONMENT)
        if done.exit_code or not done.steps:
            raise SystemExit(done.output)
        return {"cpu_seconds": done.steps[0].cpu_seconds, "seconds": done.steps[0].seconds}


def report(trained: dict[str, list[dict[str, Any]]], started: dict[str, list[dict[str, Any]]]) -> str:
    rows = [
        [
            name,
            f"{figures['watcher_cpu_seconds']:.2f}",
            f"{figures['training_cpu_seconds']:.1f}",
            f"{figures['share']:.2%}",
            f"{figures['watcher_rss_bytes'] / 2**20:.0f}",
            f"{figures['watcher_own_bytes'] / 2**20:.0f}",
        ]
        for name, (figures,) in trained.items()
    ]
    header = ["training on", "watcher, CPU-seconds", "workers, CPU-seconds", "share", "its RSS MiB", "not shared MiB"]
    ways = [[name, spread(figures, "cpu_seconds"), spread(figures, "seconds")] for name, figures in started.items()]
    ratios = [
        median(started["first step, with it"], key) / median(started["first step, without it"], key)
        for key in ("cpu_seconds", "seconds")
    ]
    ways.append(["ratio of the medians", *(f"{ratio:.3f}" for ratio in ratios)])
    return "\n\n".join([table(header, rows), table(["", "CPU-seconds", "seconds"], ways)])


class _place:
    """A directory with a recipe in it, gone afterwards."""

    def __enter__(self) -> tuple[Path, Path]:
        self.path = Path(tempfile.mkdtemp(prefix="benchmark-"))
        data = inputs.make("m15")
        recipe = {
            "model": {"path": str(data.model)},
            "data": {"train": {"path": str(data.alpaca), "format": "alpaca"}, "template": "chatml", "max_length": 512},
            "batch": {"per_device": 1},
            "precision": "fp32",
            "checkpoint": {"every_steps": 100000},
            "track": {"tensorboard": False},
        }
        return self.path, write_yaml(self.path / "recipe.yaml", recipe)

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path)


def _beats(scratch: Path, devices: int) -> list[dict[str, Any]]:
    """The heartbeats, once every rank has made a few steps."""
    while True:
        paths = [scratch / "runs" / "run" / "heartbeat" / f"rank_{rank}.json" for rank in range(devices)]
        if all(path.exists() and path.stat().st_size for path in paths):
            beats = [json.loads(path.read_text()) for path in paths]
            if all(beat["step"] >= 3 for beat in beats):
                return beats
        time.sleep(0.1)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
