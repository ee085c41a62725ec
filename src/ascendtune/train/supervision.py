"""How a training process and those that supervise it talk: its phase in a heartbeat file, and signals that stop it.

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

# Fixed, so that a new beat always covers the old one completely. The name of a host has 64 characters at most.
_BEAT_BYTES = 512
_PASSED_ON_SECONDS = 2.0
"""How long a launcher may take to pass a signal on."""


class Phases:
    """Adds up seconds per phase and keeps `heartbeat/rank_N.json` current.

    Phases are preparation (of the data), rendezvous and loading, then in each step data, forward, backward, collective
    and optimizer, in between checkpoint, evaluation and profile, and export. The heartbeat is one short write into an
    open file, without fsync: it is read while the machine is up or not at all. Seconds are the host's: on an
    accelerator work that was queued in one phase may run during the next.

    Args:
        heartbeat: the file; None keeps none.
        attempt: number of the attempt, for the heartbeat.
    """

    def __init__(self, heartbeat: Path | None, attempt: int = 1) -> None:
        self._file = (
            os.open(heartbeat, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644) if heartbeat else None
        )
        stat = stat_of(os.getpid())
        self.attempt = attempt
        who = {
            "attempt": attempt,
            "pid": os.getpid(),
            "start_ticks": stat.start_ticks if stat else None,
            "host": socket.gethostname(),
            "boot_id": boot_id(),
            "pid_namespace": pid_namespace(),
        }
        self._who = json.dumps(who)[1:]
        """What all beats end with: some ten are written in a step, so that they are put together as text."""
        self._seconds: dict[str, float] = {}
        self._innermost: str | None = None
        """The innermost phase that is open."""
        self._seconds_inside = 0.0
        """Of phases that were a part of it."""
        self.make_range: Callable[[str], AbstractContextManager[object]] | None = None
        """Makes a range of the profiler's trace around each phase, in the steps that are profiled."""
        self.step = 0
        self.enter("preparation")

    def enter(self, name: str) -> None:
        """From here on the phase is `name`; of what comes before the first step the time is not kept."""
        self.current = name
        self.pulse()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Attribute the time inside to `name`, but for that of a phase inside: after it this one goes on."""
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

    def pulse(self) -> None:
        """Write the heartbeat; for long work within one phase."""
        if self._file is not None:
            beat = f'{{"phase": "{self.current}", "step": {self.step}, "monotonic": {time.monotonic()}, {self._who}'
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

    It notes signals while `listening` lasts; the loop checks it after every step.
    """

    def __init__(self) -> None:
        self.signal_number = 0
        """The first signal that came; 0 when none did."""
        self._kept = ""
        self._since = 0.0

    @contextmanager
    def listening(self, kept: str) -> Iterator[None]:
        """Note signals while the context lasts. In a thread (`fit`, called by a web page) they stay the caller's.

        Args:
            kept: what the work keeps when it is stopped, for the message when a signal comes.
        """
        self._kept = kept
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
            # srun sends Ctrl-C to every process of a job, and the launcher, which is one of them, passes it on.
            if LAUNCHER_TOKEN in os.environ and time.monotonic() - self._since < _PASSED_ON_SECONDS:
                return
            raise KeyboardInterrupt
        if not self.signal_number:
            self._since = time.monotonic()
            # A closed terminal means the same as SIGTERM.
            self.signal_number = signal.SIGTERM if number == signal.SIGHUP else number
            name = "SIGHUP, treated as SIGTERM" if number == signal.SIGHUP else signal.Signals(number).name
            say_in_handler(f"{name}: stopping, with {self._kept} (Ctrl-C again: at once)")


def stop_flags(signal_number: int) -> list[float]:
    """Summands of a rank in a sum over ranks, from which every rank knows a signal that reached any of them."""
    return [float(signal_number == signal.SIGINT), float(signal_number == signal.SIGTERM)]


def agreed_signal(flags: Sequence[float]) -> int:
    """The signal in the sums of `stop_flags`; 0 when none came."""
    interrupts, terms = flags
    return signal.SIGTERM if terms else signal.SIGINT if interrupts else 0
