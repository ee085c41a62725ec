"""Connections to the hosts of a job, from the first question to the end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ascendtune.job.nodes.hosts import Host
from ascendtune.job.nodes.message import ALIVE, ALIVE_EVERY_SECONDS
from ascendtune.job.nodes.remote import Heard, RemoteNode


@contextmanager
def connected(hosts: Sequence[Host], heard: queue.SimpleQueue[Heard]) -> Iterator[Sequence[RemoteNode]]:
    """Connections that show every host, as long as this process lives, that it does."""
    nodes = [RemoteNode(host, heard) for host in hosts]
    over = threading.Event()

    def live() -> None:
        # Not in the main thread: it waits while the terminal is held with Ctrl-S.
        while not over.wait(ALIVE_EVERY_SECONDS):
            for node in nodes:
                node.say(**ALIVE)

    threading.Thread(target=live, daemon=True).start()
    try:
        yield nodes
    finally:
        over.set()
        # All at once: each may take seconds to notice, or never does.
        endings = [threading.Thread(target=node.end) for node in nodes]
        for ending in endings:
            ending.start()
        for ending in endings:
            ending.join()
