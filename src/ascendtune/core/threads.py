"""Work that may never end: done in a thread that does not prevent the process from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def run_in_daemon_thread(work: Callable[[], _T]) -> Future[_T]:
    """The result or error of `work`, as a future. Unlike an executor's threads, its thread lets the process end."""
    outcome = Future[_T]()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  # raised again by the one who waits
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    threading.Thread(target=run, daemon=True).start()
    return outcome
