"""Preparation of a job of several hosts: every host answers, all are alike, and node 0 has an address and a port."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.errors import AscendtuneError, MachineError, combined_error, translated_disk_errors
from ascendtune.core.log import warn
from ascendtune.job.nodes.cluster_spec import ClusterSpec
from ascendtune.job.nodes.connection import Inbox, RemoteNode, connected
from ascendtune.job.nodes.handshake import ANSWER_SECONDS, StopRequested, handshake, next_message, raise_if_stopped
from ascendtune.job.nodes.host_comparison import require_compatible_hosts, warn_of_clocks
from ascendtune.job.nodes.message import error_on
from ascendtune.job.spec import JobSpec
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.machine.visible import Kind

_APPEARS_WITHIN_SECONDS = 10.0


@dataclass(frozen=True)
class ReadyNodes:
    """Nodes that are ready, in the order of their ranks."""

    nodes: tuple[RemoteNode, ...]
    nproc: tuple[int, ...]
    kind: Kind
    master_addr: str
    master_port: int


@dataclass(frozen=True)
class ClusterResources:
    """Resources of hosts for a job, in the order of their ranks."""

    kind: Kind
    names: tuple[str, ...]
    nproc: tuple[int, ...]


def query_hosts(cluster: ClusterSpec) -> ClusterResources:
    """Check with every host, before anything is prepared, whether a job could start there, and with how many processes.

    Raises:
        MachineError: as for `gather`, except for the run directory, which need not exist yet.
    """
    inbox = Inbox()
    with connected(cluster.hosts, inbox) as nodes:
        hellos, errors = handshake(nodes, inbox, silence_seconds=cluster.silence_seconds)
        ready = _allowed(cluster, nodes, hellos, errors)
        require_compatible_hosts({node.host: hellos[node] for node in ready})
        nproc = tuple(_nproc(node, hellos[node], cluster) for node in ready)
        return ClusterResources(hellos[ready[0]]["kind"], tuple(node.host.name for node in ready), nproc)


def gather(
    spec: JobSpec,
    cluster: ClusterSpec,
    nodes: Sequence[RemoteNode],
    inbox: Inbox,
    stop_requested: StopRequested,
) -> ReadyNodes:
    """Exchange handshakes with every node, leave out nodes that do not answer if that is permitted, and choose an
    address for node 0.

    Args:
        stop_requested: returns whether the user has requested a stop meanwhile.

    Raises:
        Stopped: the user has requested a stop.
        MachineError: a host cannot be reached or differs from the others; all of them are named at once.
    """
    with _token(spec.run_dir) as token:
        hellos, errors = handshake(
            nodes, inbox, silence_seconds=cluster.silence_seconds, token=token, stop_requested=stop_requested
        )
        deadline = time.monotonic() + _APPEARS_WITHIN_SECONDS
        for node in hellos:
            if error := _unanswered(token, nodes.index(node), node, deadline, stop_requested):
                errors[node] = error
    ready = _allowed(cluster, nodes, hellos, errors)
    for node, error in errors.items():
        warn(f"continuing without {node.host.name}: {error.what}")
        node.end()
    answers = [hellos[node] for node in ready]
    described = {node.host: hellos[node] for node in ready}
    require_compatible_hosts(described)
    warn_of_clocks(described)
    nproc = tuple(_nproc(node, answer, cluster) for node, answer in zip(ready, answers, strict=True))
    address, port = _endpoint(ready, answers, inbox, stop_requested)
    return ReadyNodes(tuple(ready), nproc, answers[0]["kind"], address, port)


def _allowed(
    cluster: ClusterSpec,
    nodes: Sequence[RemoteNode],
    hellos: dict[RemoteNode, dict[str, Any]],
    errors: dict[RemoteNode, AscendtuneError],
) -> list[RemoteNode]:
    """The nodes without an error, in order, if they suffice."""
    ready = [node for node in nodes if node in hellos and node not in errors]
    if len(ready) < cluster.fewest:
        raise combined_error(list(errors.values()))
    return ready


@contextmanager
def _token(run_dir: Path) -> Iterator[Path]:
    """A file in the run directory that every node must see; each node creates another one beside it."""
    token = run_dir / f".meeting_{secrets.token_hex(8)}"
    with translated_disk_errors(run_dir, "checking whether the run directory is shared"):
        run_dir.mkdir(parents=True, exist_ok=True)
        token.touch()
    try:
        yield token
    finally:
        for path in run_dir.glob(f"{token.name}*"):
            path.unlink(missing_ok=True)


def _unanswered(
    token: Path, number: int, node: RemoteNode, deadline: float, stop_requested: StopRequested
) -> AscendtuneError | None:
    answer = token.with_name(f"{token.name}.{number}")
    while not answer.exists():
        raise_if_stopped(stop_requested)
        if time.monotonic() > deadline:
            return MachineError(
                f"files that {node.host.name} writes into the run directory are not visible here",
                code="run-not-shared",
                remedy="put run_dir on a file system that all nodes share",
                where=token.parent,
            )
        time.sleep(0.1)
    return None


def _nproc(node: RemoteNode, answer: dict[str, Any], cluster: ClusterSpec) -> int:
    are_counted = vendor_of(answer["kind"]).is_accelerator
    nproc = cluster.nproc or node.host.slots or (int(answer["devices"]) if are_counted else 1)
    if are_counted and nproc > answer["devices"]:
        raise MachineError(
            f"{nproc} devices requested, {node.host.name} has {answer['devices']}",
            code="too-few-devices",
            remedy=f"use --devices {answer['devices']}, or leave the host out",
            where=node.host.name,
        )
    return nproc


def _endpoint(
    nodes: Sequence[RemoteNode],
    answers: Sequence[dict[str, Any]],
    inbox: Inbox,
    stop_requested: StopRequested,
) -> tuple[str, int]:
    """Address and port at which node 0 will wait for the others."""
    # This machine is not reached by ssh: its address is the source of its ssh connections.
    reached = [answer["address"] or answers[0]["client"] or nodes[0].host.name for answer in answers]
    nodes[0].send(peers=reached[1:] or reached)
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        received = next_message(inbox, deadline, stop_requested)
        if received is None:
            raise MachineError(
                f"{nodes[0].host.name} does not report an address for the rendezvous",
                code="host-silent",
                remedy="check that the machine is up",
                where=nodes[0].host.name,
            )
        if received.message is None and received.node in nodes:
            raise received.node.why_ended()
        if received.message and "refused" in received.message:
            raise error_on(received.node.host.name, received.message["refused"])
        if received.message and "endpoint" in received.message:
            return received.message["endpoint"]["address"], int(received.message["endpoint"]["port"])
