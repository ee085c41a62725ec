"""`comm bench` beside a bare loop of the same collective: both must find the same bandwidth.

    python benchmarks/comm.py [--pairs 40]

all_reduce of fp32 over gloo, two ranks on this machine, one thread each. In the same two processes the bare loop and
the command's own measurement take turns, so that a neighbour's load falls on both; the ratio is taken within a pair.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from measure import run, table, write_result

_SIZES = [1 << 20, 4 << 20, 16 << 20]
_RANKS = Path(__file__).with_name("comm_ranks.py")
_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        result = run(
            [*_TORCHRUN, _RANKS, str(pairs), *map(str, _SIZES)],
            directory=Path(scratch),
            env={"GLOO_SOCKET_IFNAME": "lo"},
        )
    if result.exit_code:
        raise SystemExit(f"exit code {result.exit_code}:\n{result.output[-3000:]}")
    found = json.loads(next(line for line in result.output.splitlines() if line.startswith("{")))
    load = round(os.getloadavg()[0], 2)
    rows, figures = [], {}
    for size in _SIZES:
        # Of two ranks, busbw is size over time.
        speeds = [(size / bare / 1e9, size / ours / 1e9) for bare, ours in found[str(size)]]
        ratios = sorted(ours / bare for bare, ours in speeds)
        name, quarter = f"{size >> 20} MiB", pairs // 4
        figures[name] = [{"bare": bare, "comm_bench": ours, "load": load} for bare, ours in speeds]
        rows.append(
            [
                name,
                f"{statistics.median(bare for bare, _ in speeds):.3f}",
                f"{statistics.median(ours for _, ours in speeds):.3f}",
                f"{statistics.median(ratios):.3f} ({ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f})",
            ]
        )
    header = ["size", "bare loop, GB/s busbw", "comm bench, GB/s busbw", f"ratio, median of {pairs} pairs (quartiles)"]
    write_result("comm-bench", table(header, rows), figures)


if __name__ == "__main__":
    main()
