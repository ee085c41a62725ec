"""An sbatch script: one task per node, each of which starts the node's processes.

How Slurm ends a job was looked at with slurm-wlm 22.05: `scancel JOB` sends SIGTERM to tasks and to the script's shell,
and kills after KillWait (30 s unless the site says otherwise); `scancel --signal=TERM JOB` sends it to tasks alone, and
nothing is killed. Near the time limit the shell is therefore told by another signal: passing SIGTERM on would reach
training twice when a job is cancelled, and the second one ends it without a checkpoint.
"""

from __future__ import annotations

import re
import shlex

from ascendtune.job.backend.submission import HEADER, Submission

_WARNED_SECONDS = 120
"""How long before the time limit training is told to write its checkpoint."""

_CORES_FOR_A_DEVICE = 8
"""Without a request Slurm gives a task one core; a Kunpeng server has 192 for 8 NPUs."""

_TIME_IS_UP = """\
# Before the time limit Slurm sends this shell SIGUSR1. Training gets SIGTERM and writes a checkpoint; then the job
# queues again and goes on from there.
time_is_up=
trap 'time_is_up=yes; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
"""

_TO_THE_END = """\
step=$!
status=0
while kill -0 "$step" 2>/dev/null; do
  status=0
  wait "$step" || status=$?
done
if [ -n "$time_is_up" ] && [ "$status" -eq 143 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def write(submission: Submission) -> str:
    """The script for sbatch. It runs where it is submitted: same Python, same paths on every node."""
    lines = [
        "#!/bin/bash",
        f"# {HEADER}: {submission.places}.",
        "# Stop with a checkpoint: scancel --signal=TERM JOB   The same script again resumes.",
    ]
    lines += [f"#SBATCH {_quoted(option)}" for option in _options(submission)]
    lines += [f"cd {shlex.quote(str(submission.directory))} || exit 3"]
    for line in submission.needs.set_up:
        lines += ["# shellcheck source=/dev/null", line]
    # Since Slurm 22.05 srun does not take over what sbatch was told.
    srun = 'srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK"'
    command = shlex.join(submission.argv)
    expanded_by_tasks = ""
    if submission.nodes > 1:
        lines += [
            f"export NNODES={submission.nodes}",
            'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            # Two jobs on one node must not meet.
            "MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
            "export MASTER_ADDR MASTER_PORT",
        ]
        command = f"bash -c 'NODE_RANK=$SLURM_NODEID exec \"$@\"' node {command}"
        expanded_by_tasks = "# shellcheck disable=SC2016\n"
    step = f"{expanded_by_tasks}{srun} \\\n  {command}"
    if submission.hours is not None:
        return "\n".join([*lines, f"{_TIME_IS_UP}{step} &", _TO_THE_END])
    return "\n".join([*lines, step, ""])


def _options(submission: Submission) -> list[str]:
    options = [
        f"--job-name={submission.name}",
        f"--output={submission.name}-%j.log",
        # A job that was queued again goes on writing where it left off.
        "--open-mode=append",
        "--requeue",
        f"--nodes={submission.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={submission.devices * (_CORES_FOR_A_DEVICE if submission.vendor.is_accelerator else 1)}",
    ]
    if submission.needs.gres:
        options += [f"--gres={submission.needs.gres}:{submission.devices}"]
    if not submission.needs.told_by_slurm:
        # Nobody would tell two jobs on one node which devices are whose; and then all memory may be used.
        options += ["--exclusive", "--mem=0"]
    if submission.partition:
        options += [f"--partition={submission.partition}"]
    if submission.hours is not None:
        options += [f"--time={_time(submission.hours)}", f"--signal=B:USR1@{_WARNED_SECONDS}"]
    # Last, because the last of two wins.
    return options + list(submission.sbatch)


def _quoted(option: str) -> str:
    """One argument of sbatch, as it stands in a directive: there a space ends it, and `#` begins a comment."""
    return re.sub(r"""([\s"'\\#])""", r"\\\1", option)


def _time(hours: float) -> str:
    """Slurm's days-hours:minutes:seconds."""
    minutes = round(hours * 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:00"
