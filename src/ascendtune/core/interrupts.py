"""Which signals stop a program, and Ctrl-C where Python would drop it.

Every command loads this before anything else, so it imports almost nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

LAUNCHER_TOKEN = "ASCENDTUNE_LAUNCHER"
"""Environment variable that identifies the processes that one launcher has started, orphans included: children inherit
it. The launcher passes stop signals on to them. Not the job's mark, which the next attempt of the job carries, too."""

_AGAIN_SECONDS = 0.02


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask this process to stop. Under nohup a hang-up is to be ignored, and is not among them."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hangs_up else ()))


def keep_interrupts() -> None:
    """Raise a KeyboardInterrupt again that Python drops, as it does in destructors and in callbacks of imports.

    Python would print "Exception ignored in …" and continue as if Ctrl-C had not been pressed.
    """
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
