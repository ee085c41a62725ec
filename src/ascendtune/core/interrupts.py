"""The signals that stop a program, and Ctrl-C where Python would drop it.

Every command loads this before anything else, so it imports almost nothing.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

LAUNCHER_TOKEN = "ASCENDTUNE_LAUNCHER"
"""Environment variable that identifies the processes that one launcher has started, including orphans: children inherit
it. The launcher passes stop signals on to them. The job's mark does not serve: the job's next attempt has it, too."""

_AGAIN_SECONDS = 0.02
_waits = False
"""Whether a Ctrl-C is deferred to the end of NumPy's import."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask this process to stop. Under nohup SIGHUP is ignored, and not among them."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hangs_up else ()))


@contextmanager
def stop_signals_deferred() -> Iterator[None]:
    """Context at whose end the stop signals that came meanwhile take effect. In other threads than the main one, which
    handles signals, it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in stop_signals()}
    # A handler that is not callable ends the process or ignores the signal without Python.
    handled = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handled:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handler of SIGINT: raises KeyboardInterrupt; within NumPy's import at its end, unless it is the second Ctrl-C.

    If the main thread blocks SIGINT, a thread that does not block it, such as one of NumPy's OpenBLAS, has received it:
    the signal is then sent to the main thread, which handles it once it unblocks it.

    torch imports NumPy and drops exceptions of that import. NumPy stays partially imported, and later uses of it fail
    with errors that do not mention Ctrl-C.
    """
    global _waits
    if number in signal.pthread_sigmask(signal.SIG_BLOCK, []):
        signal.pthread_kill(_thread.get_ident(), number)
        return
    is_second, _waits = _waits, False
    spec = getattr(sys.modules.get("numpy"), "__spec__", None)
    if is_second or not getattr(spec, "_initializing", False):
        signal.default_int_handler(number, frame)
    _waits = True
    # Not a Timer: this handler may run while the main thread has the locks of `threading`.
    _thread.start_new_thread(_interrupt_again, ())


def _interrupt_again() -> None:
    global _waits
    time.sleep(_AGAIN_SECONDS)
    if _waits:
        _waits = False
        os.kill(os.getpid(), signal.SIGINT)


def keep_interrupts() -> None:
    """Never drop a Ctrl-C: defer it within NumPy's import (`interrupt`), and raise those again that Python drops.

    Python drops exceptions in destructors and in callbacks: it prints "Exception ignored in …" and continues as if
    Ctrl-C had not been pressed.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    previous_hook = sys.unraisablehook

    def raise_again(caught: Any) -> None:
        if caught.exc_type is not KeyboardInterrupt:
            previous_hook(caught)
            return
        # Not from here: it would be dropped again. Sent to the process: this thread may block it, as during a fork, and
        # the timer's thread inherits that.
        again = threading.Timer(_AGAIN_SECONDS, os.kill, [os.getpid(), signal.SIGINT])
        again.daemon = True
        again.start()

    sys.unraisablehook = raise_again
