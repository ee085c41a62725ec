from __future__ import annotations

import threading

from ascendtune.job.nodes.log_queue import LogQueue

_LINE = "x" * 899 + "\n"
"""A thousand bytes, as they are counted."""


class _Listener:
    """Takes nothing before `ready` is set."""

    def __init__(self, limit_bytes: int) -> None:
        self.ready = threading.Event()
        self.heard: list[tuple[str | None, str | int]] = []
        self.backlog = LogQueue[str](self._take, limit_bytes=limit_bytes)
        # One is taken out and waits to be heard.
        self.backlog.put(None, "first")
        while not self.backlog.has_room() or self.backlog._items:
            pass

    def _take(self, source: str | None, what: str | int) -> None:
        self.ready.wait(10)
        self.heard.append((source, what))


def test_the_oldest_is_left_out_and_counted() -> None:
    listener = _Listener(3_000)
    listener.backlog.put("a", _LINE)
    listener.backlog.put(None, "kept")
    for _ in range(5):
        listener.backlog.put("a", _LINE)
    assert not listener.backlog.has_room()
    assert not listener.backlog.finish(lambda: True)
    listener.ready.set()
    assert listener.backlog.finish()
    assert listener.heard == [(None, "first"), ("a", 4), (None, "kept"), ("a", _LINE), ("a", _LINE)]
    assert listener.backlog.has_room()


def test_dropped_lines_are_added_to_an_earlier_count() -> None:
    listener = _Listener(1_000)
    for what in ("two\nlines\n", 70, "no end", _LINE):
        listener.backlog.put("a", what)
    listener.ready.set()
    assert listener.backlog.finish()
    assert listener.heard == [(None, "first"), ("a", 73), ("a", _LINE)]


def test_queue_passes_on_every_line_in_order() -> None:
    heard: list[str | int] = []
    backlog = LogQueue[str](lambda _, what: heard.append(what))
    for number in range(1000):
        backlog.put("a", f"{number}\n")
    assert backlog.finish()
    assert heard == [f"{number}\n" for number in range(1000)]
