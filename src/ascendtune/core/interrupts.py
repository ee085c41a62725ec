"""Which signals stop a program, and Ctrl-C where Python would drop it.

Every command loads this before anything else, so it imports almost nothing.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

LAUNCHER_TOKEN = "ASCENDTUNE_LAUNCHER"
"""Environment variable that identifies the processes that one launcher has started, orphans included: children inherit
it. The launcher passes stop signals on to them. Not the job's mark, which the next attempt of the job carries, too."""

_AGAIN_SECONDS = 0.02
_waits = False
"""Whether a Ctrl-C waits for the end of NumPy's import."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask this process to stop. Under nohup a hang-up is to be ignored, and is not among them."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hangs_up else ()))


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handler of SIGINT: raises KeyboardInterrupt, but within NumPy's import at its end; at a second Ctrl-C at once.

    Where the main thread blocks SIGINT, a thread that does not block it, as of NumPy's OpenBLAS, has taken it: it waits
    for the main thread, which is to unblock it.

    torch imports NumPy and drops what that raises. NumPy stays half imported, and what uses it later fails with an
    error that says nothing of Ctrl-C.
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
    # Not a Timer: this handler may have come while the main thread held the locks of `threading`.
    _thread.start_new_thread(_interrupt_again, ())


def _interrupt_again() -> None:
    global _waits
    time.sleep(_AGAIN_SECONDS)
    if _waits:
        _waits = False
        os.kill(os.getpid(), signal.SIGINT)


def keep_interrupts() -> None:
    """Let no Ctrl-C be dropped: raise none within NumPy's import (`interrupt`), and those again that Python drops.

    It does so in destructors and in callbacks: it would print "Exception ignored in …" and continue as if Ctrl-C had
    not been pressed.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    others = sys.unraisablehook

    def raise_again(caught: Any) -> None:
        if caught.exc_type is not KeyboardInterrupt:
            others(caught)
            return
        # Not from here: it would be dropped again. To the process: this thread may block it, as while it forks, and the
        # timer's thread inherits that.
        again = threading.Timer(_AGAIN_SECONDS, os.kill, [os.getpid(), signal.SIGINT])
        again.daemon = True
        again.start()

    sys.unraisablehook = raise_again
