"""The first exchange with hosts: whether they answer, their resources, and the wait for lost hosts to return."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ascendtune.core.errors import AscendtuneError, MachineError, Stopped
from ascendtune.core.log import say
from ascendtune.core.units import format_duration
from ascendtune.job.nodes.cluster_spec import ClusterSpec, TargetHost
from ascendtune.job.nodes.connection import Inbox, Received, RemoteNode, connected, portable_environment
from ascendtune.job.nodes.host_comparison import in_a_row
from ascendtune.job.nodes.message import error_on

ANSWER_SECONDS = 60.0
_LOOK_EVERY_SECONDS = 0.2
_TRY_EVERY_SECONDS = 5.0

StopRequested = Callable[[], signal.Signals | None]
"""Returns whether the user has requested a stop meanwhile."""


def handshake(
    nodes: Sequence[RemoteNode],
    inbox: Inbox,
    *,
    silence_seconds: float,
    token: Path | None = None,
    stop_requested: StopRequested = lambda: None,
) -> tuple[dict[RemoteNode, dict[str, Any]], dict[RemoteNode, AscendtuneError]]:
    """The answers of the hosts that answer, and the errors of the others.

    Args:
        silence_seconds: time without a message after which a node considers us lost.
        token: a file that every node must see.

    Raises:
        Stopped: the user has requested a stop.
    """
    job = {
        "directory": str(Path.cwd()),
        "env": portable_environment(os.environ),
        "token": str(token) if token else None,
        "silence_seconds": silence_seconds,
    }
    for number, node in enumerate(nodes):
        node.send(job={**job, "node": number})
    hellos: dict[RemoteNode, dict[str, Any]] = {}
    errors: dict[RemoteNode, AscendtuneError] = {}
    deadline = time.monotonic() + ANSWER_SECONDS
    while len(hellos) + len(errors) < len(nodes):
        received = next_message(inbox, deadline, stop_requested)
        if received is None:
            break
        if received.message is None:
            errors.setdefault(received.node, received.node.why_ended())
        elif "hello" in received.message:
            hellos[received.node] = {**received.message["hello"], "received": time.time()}
        elif "refused" in received.message:
            errors[received.node] = error_on(received.node.host.name, received.message["refused"])
    for node in nodes:
        if node not in hellos and node not in errors:
            errors[node] = _no_answer(node)
    return hellos, errors


def _no_answer(node: RemoteNode) -> MachineError:
    name = node.host.name
    return MachineError(
        f"{name} does not answer within {ANSWER_SECONDS:.0f} s",
        code="host-silent",
        remedy=f"check that passwordless ssh works: ssh {name} {node.python} -V",
        where=name,
    )


def next_message(inbox: Inbox, deadline: float, stop_requested: StopRequested) -> Received | None:
    """The next message; None if none arrives until `deadline`.

    Raises:
        Stopped: the user has requested a stop.
    """
    while (now := time.monotonic()) < deadline:
        raise_if_stopped(stop_requested)
        with suppress(queue.Empty):
            return inbox.get(timeout=min(_LOOK_EVERY_SECONDS, deadline - now))
    return None


def raise_if_stopped(stop_requested: StopRequested) -> None:
    """Raise `Stopped` if the user has requested a stop."""
    if number := stop_requested():
        raise Stopped("stopped before it started", remedy="start the same command again", signal_number=number)


def wait_for_reconnect(cluster: ClusterSpec, stop_requested: StopRequested) -> None:
    """Wait until every host answers, or the waiting time is over; `gather` then reports hosts that still do not answer.

    Raises:
        Stopped: the user has requested a stop.
    """
    began = time.monotonic()
    missing, was_told = cluster.hosts, False
    while time.monotonic() - began < cluster.patience_seconds:
        errors = _errors(missing, cluster, stop_requested)
        if not errors:
            if was_told:
                say(f"all hosts answer, after {format_duration(time.monotonic() - began)}")
            return
        missing = tuple(errors)
        if not was_told:
            names = in_a_row(host.name for host in missing)
            why = next(iter(errors.values())).what
            say(f"waiting for {names} to return, for at most {cluster.patience_seconds:.0f} s: {why}")
            was_told = True
        next_message(Inbox(), time.monotonic() + _TRY_EVERY_SECONDS, stop_requested)


def _errors(
    hosts: Sequence[TargetHost], cluster: ClusterSpec, stop_requested: StopRequested
) -> Mapping[TargetHost, AscendtuneError]:
    inbox = Inbox()
    with connected(hosts, inbox) as nodes:
        _, errors = handshake(nodes, inbox, silence_seconds=cluster.silence_seconds, stop_requested=stop_requested)
    return {node.host: error for node, error in errors.items()}
