"""A program with a worker's heartbeat, without torch, that becomes silent on request."""

import os
import signal
import sys
import time

from ascendtune.core.rundir import RunDir
from ascendtune.train.phases import Phases
from ascendtune.train.stack_dump import block_stacks_signal, dump_stacks_on_signals

STEPS = 20
run, how = RunDir(sys.argv[1]), sys.argv[2]
rank = int(os.environ.get("RANK", "0"))


def reads_from_a_dead_disk():
    waits()


def waits_for_rank_1():
    waits()


def waits():
    deadline = time.monotonic() + 40
    while not (run.path / "go_on").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


block_stacks_signal()
dump_stacks_on_signals(run)
if how == "deaf":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
if how == "import" and rank == 1:
    reads_from_a_dead_disk()
phases = Phases(run.heartbeats / f"rank_{rank}.json")
if how == "import":
    phases.enter("rendezvous")
    waits_for_rank_1()
if rank == 0:
    run.begin_attempt({})
for step in range(1, STEPS + 1):
    phases.step = step
    for name in ("data", "forward", "backward"):
        with phases.phase(name):
            time.sleep(0.02)
if how == "checkpoint":
    # Longer than any step may take.
    with phases.phase("checkpoint"):
        time.sleep(5)
elif how == "evaluation":
    with phases.phase("evaluation"):
        for _ in range(10):
            phases.write_heartbeat()
            time.sleep(0.5)
else:
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    is_odd = rank == 1 and how != "together"
    with phases.phase("data" if is_odd else "backward"):
        reads_from_a_dead_disk() if is_odd else waits_for_rank_1()
phases.close()
if rank == 0:
    run.end_attempt("finished")
