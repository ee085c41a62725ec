"""Messages for people, on stderr: one line each, with the rank as prefix if there are several ranks."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from ascendtune.core.terminal_text import safe, terminal_width, wrapped

_logger = logging.getLogger("ascendtune")
displays: list[Callable[[], AbstractContextManager[None]]] = []
"""Contexts that hide a display on the terminal's current line, such as a progress bar, while a message is written."""


class _Format(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        # A scheduler may set only one of the two: then this process is not a rank.
        rank, is_alone = os.environ.get("RANK"), os.environ.get("WORLD_SIZE", "1") == "1"
        label = "" if rank is None or is_alone else f"[rank {rank}] "
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return wrapped(f"{label}{level}{safe(record.getMessage())}", terminal_width(sys.stderr))


class _CurrentStderr(logging.StreamHandler):  # type: ignore[type-arg]  # generic only in the stubs
    """Writes to the current sys.stderr: a progress display replaces it while it is on screen."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        with ExitStack() as hidden:
            for hide in displays:
                hidden.enter_context(hide())
            super().emit(record)


_VERBOSITY = "ASCENDTUNE_VERBOSITY"
"""Environment variable, which workers inherit: `quiet`, `verbose`, or absent."""


def set_up(*, quiet: bool | None = None, verbose: bool = False) -> None:
    """Send our messages to stderr. Loggers of libraries are not changed.

    Args:
        quiet: only warnings and errors, no notices, progress or closing lines, here and in workers; None inherits the
            setting of the process that started this one.
        verbose: notices in full.
    """
    if quiet is not None:
        os.environ.pop(_VERBOSITY, None)
        if quiet or verbose:
            os.environ[_VERBOSITY] = "quiet" if quiet else "verbose"
    _logger.handlers.clear()
    handler = _CurrentStderr()
    handler.setFormatter(_Format())
    _logger.addHandler(handler)
    _logger.propagate = False
    _logger.setLevel(logging.WARNING if is_quiet() else logging.INFO)


def is_quiet() -> bool:
    """Whether notices, progress and closing lines are left out."""
    return os.environ.get(_VERBOSITY) == "quiet"


def is_verbose() -> bool:
    """Whether notices are printed in full."""
    return os.environ.get(_VERBOSITY) == "verbose"


def say(message: str) -> None:
    """Log an informational message."""
    _logger.info(message)


def say_in_handler(message: str) -> None:
    """Log an informational message from a signal handler."""
    try:
        say(message)
    except RuntimeError:
        # The signal arrived while this thread was writing to the stream, which does not allow a nested write.
        os.write(2, f"{message}\n".encode())


def warn(message: str) -> None:
    """Log a warning; the work continues."""
    _logger.warning(message)


def error(message: str) -> None:
    """Log the error that ended the work."""
    _logger.error(message)
