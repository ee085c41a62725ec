"""What a checkpoint costs training: seconds that it blocks, memory, and how much slower steps are while it is written.

    python benchmarks/checkpoint_cost.py [--megabytes 512] [--saves 4] [--steps 200]

One process writes checkpoints of one matrix and AdamW's two moments of it; between them it makes steps of small matrix
products on one thread. To compare with another commit: the same command with its `src` in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

import torch
from measure import table

from ascendtune.core.rundir import RunDir
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.train.checkpoint.checkpointer import Checkpointer
from ascendtune.train.checkpoint.content import NamedTensors
from ascendtune.train.strategy.base import Strategy

_ROWS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512, help="of the weights and both moments together")
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200, help="before the first checkpoint")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = given.megabytes * 2**20 // (3 * 4 * 4096)
    model = torch.nn.Linear(4096, rows, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model.weight.grad = torch.full_like(model.weight, 1e-3)
    optimizer.step()
    model.weight.grad = None
    quiet = statistics.mean(step() for _ in range(20))
    before = peak_megabytes()
    lines = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        run = RunDir(Path(directory))
        run.checkpoints.mkdir()
        (run.path / "run.json").write_text("{}")
        strategy = Strategy(find_device())
        checkpointer = Checkpointer(run, strategy, NamedTensors(model, optimizer, strategy.device), keep=1)
        checkpointer.make_room()
        for _ in range(given.steps):
            step()
        for number in range(1, given.saves + 1):
            begun, busy, all_busy = time.perf_counter(), time.thread_time(), time.process_time()
            checkpointer.save(number, {})
            blocked, blocked_busy = time.perf_counter() - begun, time.thread_time() - busy
            during = []
            while checkpointer._pending is not None and not checkpointer._pending.done():
                during.append(step())
            written = time.perf_counter() - begun
            checkpointer.wait()
            # The steps' processor time is that of this thread.
            writing = time.process_time() - all_busy - (time.thread_time() - busy)
            slower = f"{statistics.mean(during) / quiet:.2f}" if during else "none"
            more = f"{peak_megabytes() - before:.0f}"
            lines.append(
                [str(number), f"{blocked:.3f}", f"{blocked_busy:.3f}", f"{written:.2f}", f"{writing:.3f}", slower, more]
            )
    names = [
        "checkpoint",
        "blocks (s)",
        "of the processor (s)",
        "written after (s)",
        "of the processor (s)",
        "a step meanwhile",
        "more memory at most (MiB)",
    ]
    print(table(names, lines))


def step() -> float:
    """Seconds of one step."""
    begun = time.perf_counter()
    left, right = torch.ones(_ROWS, 1024), torch.ones(1024, 1024)
    for _ in range(8):
        left = left @ right * 1e-3
    return time.perf_counter() - begun


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
