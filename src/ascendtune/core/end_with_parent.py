"""Let a process end when its parent does."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """As `terminate_with_parent`; exit if the parent, whose process id is `parent`, has ended already."""
    terminate_with_parent()
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)


def terminate_with_parent() -> None:
    """Let the kernel send this process SIGTERM when its parent ends, for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
