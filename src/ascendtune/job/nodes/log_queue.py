"""A bounded log queue: producers never block; when it overflows the oldest lines are dropped and counted."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_LIMIT_BYTES = 16 << 20
_BYTES_OF_AN_ITEM = 100
"""Memory of an item in addition to its text."""
_LOOK_EVERY_SECONDS = 0.2

Source = TypeVar("Source", bound=Hashable)


class LogQueue(Generic[Source]):
    """A queue, and a thread that passes its items on, in order.

    If the queue is full, the oldest lines are dropped; their number replaces them.

    Args:
        pass_on: called with a source, and its text or the number of dropped lines. It may block. The source is None for
            text that is never dropped.
        limit_bytes: the size of the queue.
    """

    def __init__(self, pass_on: Callable[[Source | None, str | int], None], *, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._pass_on = pass_on
        self._limit = limit_bytes
        self._items: deque[tuple[Source | None, str | int]] = deque()
        self._left_out: dict[Source, int] = {}
        self._size = 0
        self._is_busy = False
        # Reentrant: a signal handler may log in between.
        self._changed = threading.Condition(threading.RLock())
        threading.Thread(target=self._work, daemon=True).start()

    def put(self, source: Source | None, what: str | int) -> None:
        """Add an item; returns at once.

        Args:
            source: None for text that must not be dropped.
            what: text, or the number of lines of the source that were dropped here.
        """
        with self._changed:
            self._items.append((source, what))
            self._size += _size(what)
            if self._size > self._limit:
                self._drop_oldest()
            self._changed.notify_all()

    def has_room(self) -> bool:
        """Whether the queue has room. Callers that can wait should check this first."""
        return self._size < self._limit // 2

    def finish(self, is_impatient: Callable[[], bool] = lambda: False) -> bool:
        """Wait until everything is passed on; False if `is_impatient` ended the wait."""
        while not is_impatient():
            with self._changed:
                if not (self._items or self._left_out or self._is_busy):
                    return True
                self._changed.wait(_LOOK_EVERY_SECONDS)
        return False

    def _drop_oldest(self) -> None:
        kept = []
        while self._items and self._size > self._limit:
            source, what = self._items.popleft()
            if source is None:
                kept.append((source, what))
                continue
            self._size -= _size(what)
            self._left_out[source] = self._left_out.get(source, 0) + _lines(what)
        self._items.extendleft(reversed(kept))

    def _work(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._items or self._left_out)
                source, what = self._next()
                self._is_busy = True
            self._pass_on(source, what)

    def _next(self) -> tuple[Source | None, str | int]:
        if self._left_out:
            return self._left_out.popitem()
        source, what = self._items.popleft()
        self._size -= _size(what)
        return source, what


def _size(what: str | int) -> int:
    return _BYTES_OF_AN_ITEM + (len(what) if isinstance(what, str) else 0)


def _lines(what: str | int) -> int:
    return what if isinstance(what, int) else max(1, what.count("\n"))
