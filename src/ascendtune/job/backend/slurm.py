"""An sbatch script: one task per node, each of which starts the node's processes.

How Slurm ends a job was tested with slurm-wlm 22.05: `scancel JOB` sends SIGTERM to tasks and to the script's shell,
and kills after KillWait (30 s unless the site changes it); `scancel --signal=TERM JOB` sends it to tasks only, and
kills nothing. Near the time limit the shell therefore receives another signal: if it passed SIGTERM on, training would
receive it twice when a job is cancelled, and the second one ends it without a checkpoint.
"""

from __future__ import annotations

import shlex

from ascendtune.job.backend.submission import Submission
from ascendtune.job.backend.template import Code, fill_script

_WARNED_SECONDS = 120
"""Time before the time limit at which training is asked to write its checkpoint."""

_CORES_FOR_A_DEVICE = 8
"""Without a request Slurm assigns one core to a task; a Kunpeng server has 192 for 8 NPUs."""


def write(submission: Submission) -> str:
    """The script for sbatch. It runs where it is submitted: same Python, same paths on every node."""
    is_limited = submission.hours is not None
    values = {
        **submission.values,
        "cores": submission.devices * (_CORES_FOR_A_DEVICE if submission.vendor.is_accelerator else 1),
        "gres": submission.needs.gres,
        # Slurm would not isolate two jobs on one node; and a whole node's memory may be used.
        "takes_whole_nodes": not submission.needs.slurm_limits_devices,
        "partition": submission.partition,
        "time": _time(submission.hours) if submission.hours is not None else None,
        "warned_seconds": _WARNED_SECONDS,
        "sbatch": submission.sbatch,
        "set_up": [Code(line) for line in submission.needs.set_up],
        "command": Code(shlex.join(submission.argv)),
        "in_background": Code(" &" if is_limited else ""),
    }
    return fill_script("slurm.sh", values)


def _time(hours: float) -> str:
    """Slurm's days-hours:minutes:seconds."""
    minutes = round(hours * 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:00"
