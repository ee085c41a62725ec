"""The real worker, of which rank 1 falls asleep when it makes the batch of step 6, in the first attempt."""

import os
import sys
import time
from pathlib import Path

from ascendtune.train import batch, worker

run = Path(sys.argv[1])
calls = 0
make = batch.Batches.make


def reads_from_a_dead_disk():
    time.sleep(120)


def faulty(self, *arguments, **named):
    global calls
    calls += 1
    if calls == 6:
        reads_from_a_dead_disk()
    return make(self, *arguments, **named)


been = run / f"been_{os.environ['RANK']}"
if os.environ["RANK"] == "1" and not been.exists():
    batch.Batches.make = faulty
been.touch()
sys.exit(worker.main([str(run)]))
