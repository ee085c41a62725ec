"""How long `ascendtune explain` takes on a long log, and how much memory: CPU seconds a GB, peak RSS.

    python benchmarks/explain.py [MEGABYTES] [ROUNDS]

Three logs are made: one as jobs write them, in which most lines differ in digits only; the same one in Docker's JSON
objects; and the worst, in which no line is like another and every tenth holds words of errors.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from measure import in_turn, spread, table, write_result

from ascendtune.check.explain.explain import explain

_FAILURE = "[rank5]: RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 5; 60.96 GiB total capacity)\n"
_WORDS = ["".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz", k=3 + seed % 7)) for seed in range(5000)]


def as_written(choose: random.Random) -> Iterator[str]:
    step = 0
    while True:
        step += 1
        for rank in range(8):
            yield f"[rank{rank}]: step {step} loss {choose.random():.6f} grad_norm {choose.random():.4f}\n"
        yield f"{step % 100:3}%|███▌      | {step}/400000 [00:{step % 60:02}<01:23,  1.{step % 100:02}s/it]\r"
        yield (
            f"[INFO] HCCL({step},python3):2025-07-23-03:47:57.{step % 1000:03} [op_base.cc:{step % 1000}] [{step}]"
            f"Entry-HcclAllReduce: tag[AllReduce_127.10.0.1], sendBuf[0x{choose.getrandbits(40):x}], count[{step}]\n"
        )


def in_docker(choose: random.Random) -> Iterator[str]:
    for line in as_written(choose):
        yield _wrapped(line)


def _wrapped(line: str) -> str:
    record = {"log": line, "stream": "stderr", "time": "2025-07-23T03:47:57.123456789Z"}
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"


def no_two_alike(choose: random.Random) -> Iterator[str]:
    while True:
        for _ in range(9):
            yield " ".join(choose.choices(_WORDS, k=14)) + "\n"
        yield "this error " + " ".join(choose.choices(_WORDS, k=12)) + " was a failure\n"


def measure(lines: Callable[[random.Random], Iterator[str]], megabytes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "job.log"
        with log.open("w") as file:
            size = 0
            for line in lines(random.Random(0)):
                file.write(line)
                size += len(line.encode())
                if size >= megabytes * 10**6:
                    break
            file.write(_wrapped(_FAILURE) if lines is in_docker else _FAILURE)
        start = time.process_time()
        first = explain([str(log)]).verdict.first
        spent = time.process_time() - start
    assert first is not None
    assert first.rank == 5
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu_seconds_per_gb": spent / megabytes * 1000, "peak_mib": peak}


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    kinds = {
        "as written by jobs": as_written,
        "the same in Docker's JSON": in_docker,
        "no two lines alike, errors in every tenth": no_two_alike,
    }
    figures = in_turn({name: partial(measure, lines, megabytes) for name, lines in kinds.items()}, rounds)
    rows = [
        [name, spread(runs, "cpu_seconds_per_gb", 1), f"{max(run['peak_mib'] for run in runs):.0f}"]
        for name, runs in figures.items()
    ]
    text = table(["log", "CPU-seconds a GB", "peak RSS, MiB"], rows)
    write_result("explain", f"Each log has {megabytes} MB and its cause in the last line.\n\n{text}", figures)


if __name__ == "__main__":
    main()
