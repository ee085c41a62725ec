"""The processes of one node: torchrun's agent, or the program itself, with all descendants, until all have ended."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from ascendtune.core import process, process_tree, procfs
from ascendtune.core.interrupts import LAUNCHER_TOKEN
from ascendtune.core.log import say
from ascendtune.core.units import count_of

LOOK_EVERY_SECONDS = 0.2
_GRACE_SECONDS = 60.0
"""Time for workers to write a checkpoint after torchrun's agent has ended."""
_SILENT_SECONDS = 5.0
_REPEAT_SECONDS = 1.0


class Launcher:
    """Starts the processes on construction. No descendant outlives `end_descendants`, or this process, if it is killed,
    by more than seconds.

    Args:
        stdout, stdin: descriptors for rank 0: torchrun passes descriptor 0 to it as its stderr.
        stderr: the log of torchrun itself; None: our stderr.
        scratch: directory of torchrun's temporary files; removed at the end.
    """

    def __init__(
        self,
        argv: list[str],
        env: dict[str, str],
        *,
        stdin: int | None,
        stdout: int | None = None,
        stderr: Path | None,
        scratch: Path | None = None,
    ) -> None:
        process_tree.adopt_orphans()
        token = secrets.token_hex(8)
        # An absolute path, because the guard has another working directory.
        left = (str(scratch.absolute()),) if scratch else ()
        self._guard = process.Guard((sys.executable, "-P", "-m", "ascendtune.job.guard", token, *left), env)
        self._scratch = scratch
        self._others = set(process_tree.below(os.getpid()))
        self._agent = process.Child(argv, {**env, LAUNCHER_TOKEN: token}, stdin=stdin, stdout=stdout, stderr=stderr)
        self._has_agent = stderr is not None
        self._has_begun = False
        self._unanswered: signal.Signals | None = None
        self._asked_at = 0.0

    def wait(self, seconds: float = LOOK_EVERY_SECONDS) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self._unanswered is not None and time.monotonic() - self._asked_at > _REPEAT_SECONDS:
            self.signal_workers(self._unanswered)
        return self._agent.wait(seconds)

    def signal_workers(self, number: signal.Signals) -> None:
        """Send a signal to the workers and their children: a shell handles a signal only after its child ends.

        Not to the agent, which would kill them 30 s later, in the middle of a large checkpoint. The agent receives it
        only if there are no workers yet; it is then repeated, because it can be lost while torch is imported.
        """
        agent = [each for each in process_tree.children(os.getpid()) if each.pid == self._agent.pid]
        workers = process_tree.children(self._agent.pid) if self._has_agent else agent
        self._unanswered = number if self._has_agent and not workers else None
        self._asked_at = time.monotonic()
        process_tree.send_as_a_terminal(workers or agent, number)

    def workers(self) -> dict[int, procfs.Stat]:
        """Rank -> process, for ranks that have begun; before, torchrun's agent in place of the first one."""
        ranks = {
            each.pid: procfs.environment_of(each.pid).get("RANK") for each in process_tree.children(self._agent.pid)
        }
        self._has_begun |= any(ranks.values())
        if not self._has_agent or not self._has_begun:
            ranks = {self._agent.pid: "0"}
        return {int(rank): stat for pid, rank in ranks.items() if rank and (stat := procfs.stat_of(pid))}

    def pause(self) -> None:
        """Stop all processes and then this one, until the user's shell continues it; then all continue.

        Time-outs of collectives include this time: a job that is paused for longer fails when it continues.
        """
        say("paused, with all workers; `fg` continues")
        process_tree.send(self.descendants(), signal.SIGSTOP)
        # Not SIGSTOP, which would stop this process even if no shell can continue it.
        previous = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, previous)
        process_tree.send(self.descendants(), signal.SIGCONT)

    def kill(self) -> None:
        """End all processes now."""
        process_tree.send(self.descendants(), signal.SIGKILL)

    def end_descendants(self, is_impatient: Callable[[], bool] = lambda: False) -> None:
        """Wait for processes that outlive the agent: this process adopted them, and the kernel sent them SIGTERM."""
        began, is_announced = time.monotonic(), False
        while (
            (left := self.descendants())
            and (waited := time.monotonic() - began) < _GRACE_SECONDS
            and not is_impatient()
        ):
            process_tree.wait_all(left, LOOK_EVERY_SECONDS)
            if waited > _SILENT_SECONDS and not is_announced:
                waited_for = count_of(len(left), "process", "processes")
                say(f"waiting for {waited_for} to end, for at most {_GRACE_SECONDS:.0f} s")
                is_announced = True
        process_tree.send(left, signal.SIGKILL)
        process_tree.wait_all(left, LOOK_EVERY_SECONDS)
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._guard.dismiss()

    def descendants(self) -> list[psutil.Process]:
        """The agent and its descendants, including those whose parent has ended."""
        return [each for each in process_tree.below(os.getpid()) if each not in self._others]
