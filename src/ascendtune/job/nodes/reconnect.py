"""Before a job starts again: a host that was lost may be on its way back, because it reboots or its network returns."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping, Sequence

from ascendtune.core.errors import AscendtuneError
from ascendtune.core.log import say
from ascendtune.core.units import format_duration
from ascendtune.job.nodes.cluster_spec import Wanted
from ascendtune.job.nodes.connected import connected
from ascendtune.job.nodes.difference import in_a_row
from ascendtune.job.nodes.handshake import Asked, greet, next_heard
from ascendtune.job.nodes.hosts import Host
from ascendtune.job.nodes.remote import Heard

_TRY_EVERY_SECONDS = 5.0


def wait_for_return(wanted: Wanted, asked: Asked) -> None:
    """Wait until every host answers, for as long as it is worth; whoever then gathers them says what is still wrong.

    Raises:
        Stopped: the user wants to stop.
    """
    began = time.monotonic()
    missing, was_told = wanted.hosts, False
    while time.monotonic() - began < wanted.patience_seconds:
        troubles = _troubles(missing, wanted, asked)
        if not troubles:
            if was_told:
                say(f"all hosts answer, after {format_duration(time.monotonic() - began)}")
            return
        missing = tuple(troubles)
        if not was_told:
            names = in_a_row(host.name for host in missing)
            why = next(iter(troubles.values())).what
            say(f"waiting for {names} to come back, for at most {wanted.patience_seconds:.0f} s: {why}")
            was_told = True
        next_heard(queue.SimpleQueue(), time.monotonic() + _TRY_EVERY_SECONDS, asked)


def _troubles(hosts: Sequence[Host], wanted: Wanted, asked: Asked) -> Mapping[Host, AscendtuneError]:
    heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
    with connected(hosts, heard) as nodes:
        _, troubles = greet(nodes, heard, silence_seconds=wanted.silence_seconds, asked=asked)
    return {node.host: error for node, error in troubles.items()}
