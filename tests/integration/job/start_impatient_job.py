"""The driver of a job whose watcher waits for moments where it waits for minutes in earnest."""

import sys
from functools import partial
from pathlib import Path

from ascendtune.cli.messages import print_error
from ascendtune.core import log
from ascendtune.job.backend import local
from ascendtune.job.hang.judge import Limits
from ascendtune.job.spec import JobSpec

log.set_up()
# Above what a verdict takes for a moment ago.
steps, before = float(sys.argv[7]), float(sys.argv[8])
phases = {**Limits().phases, "startup": before, "rendezvous": before}
limits = Limits(least_seconds=3, first_steps_seconds=steps, phases=phases)
local.Watcher = partial(local.Watcher, limits=limits, look_every_seconds=0.1)
local.StopMethods = partial(local.StopMethods, patience_seconds=0.5)
worker, run, how, nproc, on_hang, max_restarts = sys.argv[1:7]
spec = JobSpec(
    (sys.executable, worker, run, how),
    Path(run),
    nproc=int(nproc),
    kind="cpu",
    on_hang=on_hang,
    max_restarts=int(max_restarts),
)
result = local.start(spec)
if result.error:
    print_error(result.error)
sys.exit(result.exit_code)
