"""Jobs on this machine: one process is us, several are torchrun's, and none is left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
        agent = process.Child(argv, env, stdin=2, stderr=launcher_log)
    exit_code, asked_to_stop = _Watch(agent, spec.nproc).until_the_end()
    result = outcome(spec.run_dir, before, exit_code, asked_to_stop, said_before)
    registry.close(entry, result.exit_code)
    return result


class _Watch:
    """Waits for torchrun and its workers; passes the first signal on, and ends everything at the second."""

    def __init__(self, agent: process.Child, nproc: int) -> None:
        self._agent = agent
        self._nproc = nproc
        self._family: dict[int, psutil.Process] = {}
        self._asked: signal.Signals | None = None
        self._passed_on = False

    def until_the_end(self) -> tuple[int, signal.Signals | None]:
        """The agent's exit code, and the signal that asked for the end, if one did."""
        with self._signals_noted():
            exit_code = None
            while exit_code is None:
                exit_code = self._agent.wait(_LOOK_EVERY_SECONDS)
                self._meet()
                if self._asked and not self._passed_on:
                    self._pass_on(self._asked)
            self._see_the_family_out()
        return exit_code, self._asked

    def _meet(self) -> None:
        """Remember the workers while their parent lives: they cannot be found through it afterwards."""
        if len(self._family) < self._nproc:
            self._family |= {child.pid: child for child in process.below(self._agent.pid)}

    def _pass_on(self, number: signal.Signals) -> None:
        # To the workers, not to the agent: it would kill them 30 s later, in the middle of a large checkpoint.
        self._passed_on = True
        if self._family:
            process.send(self._family.values(), number)
        else:
            self._agent.signal(number)

    def _see_the_family_out(self) -> None:
        deadline = time.monotonic() + _GRACE_SECONDS
        left = list(self._family.values())
        while left and time.monotonic() < deadline:
            left = process.wait_all(left, _LOOK_EVERY_SECONDS)
        process.send(left, signal.SIGKILL)

    def _kill(self) -> None:
        everything = {**self._family, **{child.pid: child for child in process.below(self._agent.pid)}}
        self._agent.signal(signal.SIGKILL)
        process.send(everything.values(), signal.SIGKILL)

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
