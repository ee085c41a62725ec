"""Writes a worker's Python stacks when a signal requests them, without affecting the training."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from io import FileIO

from ascendtune.core.rundir import FORCED_STACKS_SIGNAL, STACKS_SIGNAL, RunDir


def block_stacks_signal() -> None:
    """Block STACKS_SIGNAL in this thread and in all threads that it starts from now on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {STACKS_SIGNAL})


def dump_stacks_on_signals(run: RunDir) -> None:
    """Append the Python stacks of all threads to `run.stacks(rank)` at STACKS_SIGNAL or FORCED_STACKS_SIGNAL.

    `block_stacks_signal` must have been called. At STACKS_SIGNAL a thread writes the stacks under the interpreter's
    lock, also while the main thread waits in a collective. If the main thread hangs in a driver and holds the lock,
    FORCED_STACKS_SIGNAL remains: faulthandler then reads the frames without the lock. That is safe as long as no Python
    code runs: if another thread leaves a frame while it is read, the frame is freed and the process ends with SIGSEGV.
    """
    with suppress(OSError):
        file = FileIO(run.stacks(int(os.environ.get("RANK", "0"))), "wb")
        _answer_under_the_lock(file)
        _answer_without_the_lock(file)


def _answer_under_the_lock(file: FileIO) -> None:
    of_the_site = signal.getsignal(STACKS_SIGNAL)

    def answer() -> None:
        while True:
            signal.sigwait({STACKS_SIGNAL})
            with suppress(OSError):
                file.write(_stacks().encode(errors="replace"))
            if callable(of_the_site):
                of_the_site(STACKS_SIGNAL, None)

    if not callable(of_the_site):
        # For threads that other code started earlier: the default action would end the process.
        signal.signal(STACKS_SIGNAL, signal.SIG_IGN)
    threading.Thread(target=answer, name="stacks", daemon=True).start()


def _answer_without_the_lock(file: FileIO) -> None:
    has_handler = callable(signal.getsignal(FORCED_STACKS_SIGNAL))
    if not has_handler:
        # `unregister` restores this handler: the default action would end the process.
        signal.signal(FORCED_STACKS_SIGNAL, signal.SIG_IGN)
    faulthandler.register(FORCED_STACKS_SIGNAL, file, chain=has_handler)
    # Unregister before the interpreter clears its threads.
    atexit.register(faulthandler.unregister, FORCED_STACKS_SIGNAL)


def _stacks() -> str:
    """Stacks of all threads but this one, in faulthandler's format: main thread last, innermost frame first."""
    names = {each.ident: each.name for each in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sys._current_frames()
    lines = []
    for ident in sorted(frames.keys() - {threading.get_ident()}, key=lambda each: each == main):
        lines.append(f"Thread 0x{ident:016x} {names.get(ident, 'of another library')} (most recent call first):")
        lines += [
            f'  File "{frame.f_code.co_filename}", line {line} in {frame.f_code.co_name}'
            for frame, line in traceback.walk_stack(frames[ident])
        ]
    return "\n".join(lines) + "\n"
