"""A limit for what runs in the test's own process and may hang."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager


class _TooLate(BaseException):
    """Not an Exception: the command line turns those into messages."""


@contextmanager
def time_limit(seconds: int, what: str) -> Iterator[None]:
    """Fail where the block takes longer, with `what` and the place where it hung: other tests must go on."""

    def ring(*_: object) -> None:
        raise _TooLate

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    except _TooLate:
        raise AssertionError(f"no answer after {seconds} s: {what}\n{traceback.format_exc()}") from None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
