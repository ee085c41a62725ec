"""The driver of a job: start_job.py RUN HOW WORKER NPROC MAX_RESTARTS."""

import sys
from pathlib import Path

from ascendtune.cli.messages import print_error
from ascendtune.core import log
from ascendtune.job.backend.local import start
from ascendtune.job.spec import JobSpec

log.set_up()
run, how = Path(sys.argv[1]), sys.argv[2]
worker = (sys.executable, sys.argv[3], str(run), how)
result = start(JobSpec(worker, run, nproc=int(sys.argv[4]), kind="cpu", max_restarts=int(sys.argv[5])))
if result.error:
    print_error(result.error)
sys.exit(result.exit_code)
