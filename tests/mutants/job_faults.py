"""Faults of starting, watching and ending jobs, and of the network test; as in `faults`."""

from __future__ import annotations

from faults import Fault

_JOB, _HANG, _COMM = "tests/unit/job", "tests/unit/job/hang", "tests/unit/check/comm"

JOB_FAULTS = [
    # Whose process is it
    Fault(
        "core/procfs.py",
        "return stat is not None and stat.start_ticks == start_ticks",
        "return stat is not None",
        "a process that got the pid of a job that is over is taken for it, and stopped",
        f"{_JOB}/test_registry.py::test_another_process_with_the_same_pid_is_not_the_job",
    ),
    Fault(
        "core/procfs.py",
        "if boot != boot_id():",
        "if boot != boot_id() or host != socket.gethostname():",
        "a job whose host gets another name is unknown from then on, and cannot be stopped",
        f"{_JOB}/test_registry.py::test_job_is_known_after_its_host_got_another_name",
    ),
    Fault(
        "job/members.py",
        "if pid in processes and procfs.owner_of(pid) == job.uid)",
        "if pid in processes)",
        "another user's process counts as one of the job",
        f"{_JOB}/test_members.py",
    ),
    Fault(
        "job/members.py",
        "if stat.start_ticks >= job.start_ticks and mark_of",
        "if mark_of",
        "a process that is older than the job and carries its mark is stopped with it",
        f"{_JOB}/test_members.py",
    ),
    # Starting and ending
    Fault(
        "job/environment.py",
        "{name: value for name, value in user.items() if name not in _PLACES}",
        "dict(user)",
        "a job that is started inside another one believes that it has that one's rank",
        f"{_JOB}/test_environment.py",
    ),
    Fault(
        "job/restart.py",
        "or not result.is_failure or ends_here:",
        "or not result.is_failure:",
        "a job with restarts starts again after `jobs stop`",
        f"{_JOB}/test_restart.py",
    ),
    Fault(
        "job/stop.py",
        "    _send([driver], signal.SIGINT)\n",
        "    _send([driver], signal.SIGTERM)\n",
        "jobs stop leaves no time for a checkpoint",
        "tests/integration/job/test_stop.py::test_a_worker_is_given_the_time_for_its_checkpoint",
    ),
    # Hangs
    Fault(
        "job/hang/judge.py",
        "if any(now - beat.monotonic <= self._limits.of(beat.phase, pace) for beat in beats):",
        "if all(now - beat.monotonic <= self._limits.of(beat.phase, pace) for beat in beats):",
        "ranks that wait while one writes a checkpoint are called a hang",
        f"{_HANG}/test_judge.py",
    ),
    Fault(
        "job/hang/judge.py",
        "odd = min(candidates, key=lambda group: max(beat.monotonic for beat in group))",
        "odd = max(candidates, key=lambda group: max(beat.monotonic for beat in group))",
        "of two ranks at different places the one that waits is blamed",
        f"{_HANG}/test_judge.py",
    ),
    Fault(
        "job/hang/judge.py",
        "return min(max(self.steps * pace_seconds, self.least_seconds), self.first_steps_seconds)",
        "return self.steps * pace_seconds",
        "quick steps make a short pause of the file server a hang",
        f"{_HANG}/test_judge.py",
    ),
    # The network
    Fault(
        "check/comm/judge.py",
        "if senders and all(source in senders for source, _ in wrong):",
        "if senders:",
        "a sender is blamed for what goes wrong on another way",
        f"{_COMM}/test_blame.py",
    ),
    Fault(
        "check/comm/collective.py",
        "return (ranks - 1) / ranks",
        "return 1.0",
        "busbw of all_gather too high",
        f"{_COMM}/test_collective.py",
    ),
]
