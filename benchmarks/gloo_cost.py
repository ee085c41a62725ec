"""What Gloo's collectives cost on two ranks of this machine beside what `ascendtune plan` expects of them.

    python benchmarks/gloo_cost.py [--rounds 6]

Processor time of both ranks, because the clock of a busy machine tells little: in each round every collective runs at
every size, one after the other. `plan` is given the bandwidth of the all-reduce of 8 MiB, as `comm bench` would give it
on a quiet machine, and predicts all others from it. Page faults are those of both ranks, as a share of the buffer.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from measure import run, table, write_result

from ascendtune.train.plan.time_estimate import gloo_bytes
from ascendtune.train.plan.work import Transfer

_MIB = 1 << 20
_SIZES = [1, 4, 8, 16, 24, 32, 48, 64, 128]
_NAMES = ("all_reduce", "all_gather", "reduce_scatter")
_PAGE = resource.getpagesize()
_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        directory = Path(scratch)
        environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        result = run([*_TORCHRUN, Path(__file__).resolve(), str(rounds)], directory=directory, env=environment)
    if result.exit_code:
        raise SystemExit(f"exit code {result.exit_code}:\n{result.output[-3000:]}")
    found = json.loads(next(line for line in result.output.splitlines() if line.startswith("{")))
    reference = statistics.median(each["cpu"] for each in found["all_reduce 8"])
    of_reference = gloo_bytes(_transfer("all_reduce", 8), 2)
    rows = []
    for name in _NAMES:
        for size in _SIZES:
            measured = sorted(each["cpu"] for each in found[f"{name} {size}"])
            expected = reference * gloo_bytes(_transfer(name, size), 2) / of_reference
            middle = statistics.median(measured)
            wall = statistics.median(each["wall"] for each in found[f"{name} {size}"])
            faults = statistics.median(each["faults"] for each in found[f"{name} {size}"]) * _PAGE / (size * _MIB)
            rows.append([
                name, f"{size} MiB", f"{middle * 1e3:.2f} ({measured[0] * 1e3:.2f} to {measured[-1] * 1e3:.2f})",
                f"{expected * 1e3:.2f}", f"{expected / middle - 1:+.0%}", f"{wall * 1e3:.1f}", f"{faults:.2f}",
            ])  # fmt: skip
    header = ["collective", "size", "processor ms of both ranks", "predicted", "error", "clock, ms", "faults"]
    figures = {name: [{"load": round(os.getloadavg()[0], 2), **each} for each in runs] for name, runs in found.items()}
    write_result("gloo-cost", table(header, rows), figures)


def _transfer(name: str, size: int) -> Transfer:
    return Transfer(name, (size * _MIB,), of_micro_batch=False, in_forward=False)


def _collective(name: str, size: int) -> Callable[[], object]:
    whole, half = torch.zeros(size * _MIB // 4), torch.zeros(size * _MIB // 8)
    if name == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if name == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, half)
    return lambda: dist.reduce_scatter_tensor(half, whole)


def _used() -> tuple[float, int]:
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime, use.ru_minflt


def measure_as_rank(rounds: int) -> None:
    """One of two ranks under torchrun; rank 0 prints JSON."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        for size in _SIZES:
            for name in _NAMES:
                call, calls = _collective(name, size), max(2, min(64, 96 // size))
                for _ in range(2):
                    call()
                dist.barrier()
                (cpu, faults), began = _used(), time.perf_counter()
                for _ in range(calls):
                    call()
                wall, (cpu_after, faults_after) = time.perf_counter() - began, _used()
                sums = torch.tensor([cpu_after - cpu, faults_after - faults, wall / 2], dtype=torch.float64) / calls
                dist.all_reduce(sums)
                found.setdefault(f"{name} {size}", []).append(
                    dict(zip(("cpu", "faults", "wall"), sums.tolist(), strict=True))
                )
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        measure_as_rank(int(sys.argv[1]))
    else:
        main()
