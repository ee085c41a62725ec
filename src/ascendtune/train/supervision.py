"""Communication between a training process and its supervisors: its phase in a heartbeat file, and stop signals.

Free of torch.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from ascendtune.core.interrupts import LAUNCHER_TOKEN, stop_signals
from ascendtune.core.log import say_in_handler
from ascendtune.core.procfs import boot_id, pid_namespace, stat_of

# Fixed, so that a new beat always overwrites the old one completely. A host name has 64 characters at most.
_BEAT_BYTES = 512
_PASSED_ON_SECONDS = 2.0
"""Time in which a launcher passes a signal on."""


class Phases:
    """Adds up seconds per phase and keeps `heartbeat/rank_N.json` current.

    Phases are preparation (of the data), rendezvous and loading, then in each step data, forward, backward, collective
    and optimizer, in between checkpoint, evaluation and profile, and export. The heartbeat is one short write into an
    open file, without fsync: it is read only while the machine is up. Seconds are the host's: on an accelerator, work
    queued in one phase may run during the next.

    Args:
        heartbeat: the file; None writes none.
        attempt: number of the attempt, for the heartbeat.
    """

    def __init__(self, heartbeat: Path | None, attempt: int = 1) -> None:
        self._file = (
            os.open(heartbeat, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644) if heartbeat else None
        )
        stat = stat_of(os.getpid())
        self.attempt = attempt
        identity = {
            "attempt": attempt,
            "pid": os.getpid(),
            "start_ticks": stat.start_ticks if stat else None,
            "host": socket.gethostname(),
            "boot_id": boot_id(),
            "pid_namespace": pid_namespace(),
        }
        self._identity = json.dumps(identity)[1:]
        """The end of every beat. It is text, because about ten beats are written in a step."""
        self._seconds: dict[str, float] = {}
        self._innermost: str | None = None
        """The innermost open phase."""
        self._seconds_inside = 0.0
        """Seconds of phases inside the innermost one."""
        self.make_range: Callable[[str], AbstractContextManager[object]] | None = None
        """Returns a range of the profiler's trace for each phase, in profiled steps."""
        self.step = 0
        self.enter("preparation")

    def enter(self, name: str) -> None:
        """Begin phase `name`; its time is not recorded (it precedes the first step)."""
        self.current = name
        self.write_heartbeat()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Attribute the time inside to `name`, except that of inner phases; afterwards the outer phase continues."""
        outer, self._innermost = self._innermost, name
        of_outer, self._seconds_inside = self._seconds_inside, 0.0
        self.enter(name)
        start = time.perf_counter()
        try:
            with self.make_range(name) if self.make_range else nullcontext():
                yield
        finally:
            elapsed = time.perf_counter() - start
            self._seconds[name] = self._seconds.get(name, 0.0) + elapsed - self._seconds_inside
            self._innermost, self._seconds_inside = outer, of_outer + elapsed
            if outer is not None:
                self.enter(outer)

    def write_heartbeat(self) -> None:
        """Write the heartbeat. Call it during long work within one phase."""
        if self._file is not None:
            beat = (
                f'{{"phase": "{self.current}", "step": {self.step}, "monotonic": {time.monotonic()}, {self._identity}'
            )
            os.pwrite(self._file, beat.encode().ljust(_BEAT_BYTES - 1) + b"\n", 0)

    def take(self) -> dict[str, float]:
        """Seconds per phase since the last call."""
        seconds, self._seconds = self._seconds, {}
        return {name: round(value, 6) for name, value in seconds.items()}

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class StopRequest:
    """Ctrl-C and SIGTERM: the first ends the run with a checkpoint, a second Ctrl-C ends it at once.

    It handles signals while `listening` is entered; the loop checks it after each step.
    """

    def __init__(self) -> None:
        self.signal_number = 0
        """The first signal that was received; 0 if none was."""
        self.has_failed = False
        """Whether the work ends already: torchrun stops all ranks when the first of them has failed."""
        self._saved = ""
        self._since = 0.0

    @contextmanager
    def listening(self, saved: str) -> Iterator[None]:
        """Handle signals within the context. In a thread (`fit`, called by a web page) they are left to the caller.

        Args:
            saved: what the work saves when it is stopped, for the message after a signal.
        """
        self._saved = saved
        before: dict[signal.Signals, signal._HANDLER] = {}
        is_main = threading.current_thread() is threading.main_thread()
        for number in stop_signals() if is_main else ():
            before[number] = signal.signal(number, self._note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number and number == signal.SIGINT:
            # srun sends Ctrl-C to every process of a job, and the launcher, which is one of them, passes it on again.
            if LAUNCHER_TOKEN in os.environ and time.monotonic() - self._since < _PASSED_ON_SECONDS:
                return
            raise KeyboardInterrupt
        if not self.signal_number:
            self._since = time.monotonic()
            # A closed terminal is treated like SIGTERM.
            self.signal_number = signal.SIGTERM if number == signal.SIGHUP else number
            name = "SIGHUP, treated as SIGTERM" if number == signal.SIGHUP else signal.Signals(number).name
            if not self.has_failed:
                say_in_handler(f"{name}: stopping, with {self._saved} (Ctrl-C again: at once)")


def stop_flags(signal_number: int) -> list[float]:
    """This rank's summands for a sum over ranks, from which every rank derives a signal that reached any of them."""
    return [float(signal_number == signal.SIGINT), float(signal_number == signal.SIGTERM)]


def agreed_signal(flags: Sequence[float]) -> int:
    """The signal in the sums of `stop_flags`; 0 if there is none."""
    interrupts, terms = flags
    return signal.SIGTERM if terms else signal.SIGINT if interrupts else 0
