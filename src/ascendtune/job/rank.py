"""Runs inside each process that torchrun starts: redirects its output, then becomes the program.

    python -m ascendtune.job.rank [--all|--hold] LOG_DIRECTORY PROGRAM ARGUMENT…

Rank 0 writes to the terminal; torchrun passes the user's stderr to it as descriptor 0, because torchrun's own
descriptor 2 is launcher.log. Every other rank writes to rank_N.log; with --all rank 0 does, too. With --hold the
program starts with SIGINT blocked, and unblocks it when it can handle it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

from ascendtune.machine.npu.topology import cores_of

CORES = "ASCENDTUNE_CORES"
"""For each local rank the cores that it may use, as "0-23;24-47"; an empty part does not bind its rank."""

_PR_SET_PDEATHSIG = 1


def main(*arguments: str) -> None:
    options = [each for each in arguments[:1] if each.startswith("--")]
    log_directory, *program = arguments[len(options) :]
    rank = int(os.environ["RANK"])
    if "--hold" in options:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    if rank == 0 and "--all" not in options:
        os.dup2(0, 2)
    else:
        log = os.open(Path(log_directory) / f"rank_{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # When torchrun's agent is killed, the kernel ends this process; SIGTERM lets it write a checkpoint.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    bind(int(os.environ["LOCAL_RANK"]), os.environ.get(CORES, ""))
    os.execv(program[0], program)


def bind(local_rank: int, cores: str) -> None:
    """Bind this process, its threads and its children to its part of `cores`."""
    parts = cores.split(";")
    if local_rank < len(parts) and (own_cores := cores_of(parts[local_rank])):
        os.sched_setaffinity(0, own_cores)


if __name__ == "__main__":
    main(*sys.argv[1:])
