"""Jobs on this machine: one process is us, several are torchrun's, and none is left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import psutil

from ascendtune.core import process
from ascendtune.core.errors import translated_disk_errors
from ascendtune.core.log import say
from ascendtune.job import registry
from ascendtune.job.command import command
from ascendtune.job.environment import environment
from ascendtune.job.outcome import Outcome, outcome, record_of
from ascendtune.job.spec import JobSpec
from ascendtune.machine.visible import cpu_count

_LOOK_EVERY_SECONDS = 0.2
_GRACE_SECONDS = 60.0
"""How long workers may still write a checkpoint after torchrun's agent is gone."""


def start(spec: JobSpec) -> Outcome:
    """Run the job to its end. For one process this does not return: this process becomes the program.

    Raises:
        InputError: MASTER_PORT is not a port.
        MachineError: the program cannot be started, the port is taken, the registry cannot be written.
    """
    argv = command(spec, os.environ)
    env = environment(spec, os.environ, cores=cpu_count())
    entry = registry.register(spec, argv)
    if spec.nproc == 1:
        process.replace(argv, env)
    before = record_of(spec.run_dir)
    launcher_log = spec.run_dir / "log" / "launcher.log"
    with translated_disk_errors(launcher_log, "opening a log"):
        launcher_log.parent.mkdir(parents=True, exist_ok=True)
        said_before = launcher_log.stat().st_size if launcher_log.exists() else 0
        watch = _Watch(argv, env, launcher_log)
    exit_code, asked_to_stop = watch.until_the_end()
    result = outcome(spec.run_dir, before, exit_code, asked_to_stop, said_before)
    registry.close(entry, result.exit_code)
    return result


class _Watch:
    """Starts torchrun, waits for it and its workers; passes the first signal on, and ends everything at the second."""

    def __init__(self, argv: list[str], env: dict[str, str], launcher_log: Path) -> None:
        process.adopt_orphans()
        self._others = set(process.below(os.getpid()))
        self._agent = process.Child(argv, env, stdin=2, stderr=launcher_log)
        self._asked: signal.Signals | None = None
        self._passed_on = False

    def until_the_end(self) -> tuple[int, signal.Signals | None]:
        """The agent's exit code, and the signal that asked for the end, if one did."""
        with self._signals_noted():
            exit_code = None
            while exit_code is None:
                exit_code = self._agent.wait(_LOOK_EVERY_SECONDS)
                if self._asked and not self._passed_on:
                    self._pass_on(self._asked)
            self._see_the_workers_out()
        return exit_code, self._asked

    def _pass_on(self, number: signal.Signals) -> None:
        # To the workers, not to the agent: it would kill them 30 s later, in the middle of a large checkpoint.
        self._passed_on = True
        if workers := process.children(self._agent.pid):
            process.send(workers, number)
        else:
            self._agent.signal(number)

    def _see_the_workers_out(self) -> None:
        """Whoever outlives the agent is ours by now, and has been told by the kernel to stop."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while (left := self._family()) and time.monotonic() < deadline:
            process.wait_all(left, _LOOK_EVERY_SECONDS)
        process.send(left, signal.SIGKILL)

    def _kill(self) -> None:
        process.send(self._family(), signal.SIGKILL)

    def _family(self) -> list[psutil.Process]:
        """The agent and everything below it, also where a parent in between has died."""
        return [each for each in process.below(os.getpid()) if each not in self._others]

    @contextmanager
    def _signals_noted(self) -> Iterator[None]:
        def note(number: int, frame: FrameType | None) -> None:
            if self._asked is None:
                # The terminal that goes away is like a scheduler that takes the machine back.
                self._asked = signal.Signals(number) if number != signal.SIGHUP else signal.SIGTERM
                say("stopping after a checkpoint; once more stops now")
            else:
                self._kill()

        old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
