"""A node's answer to the handshake: whether the shared directories exist, its devices and its versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ascendtune.core import procfs
from ascendtune.core.errors import MachineError
from ascendtune.job.command import checked_port
from ascendtune.job.spec import NodePlace
from ascendtune.machine.route import interface_of, source_address
from ascendtune.machine.visible import visible_devices

COMPARED = ("ascendtune", "torch", "torch_npu", "transformers", "deepspeed")
"""Packages whose versions must be equal on all nodes."""
_APPEARS_WITHIN_SECONDS = 10.0
"""A network file system may show a new file late."""


def describe_host(job: Mapping[str, Any]) -> dict[str, Any]:
    """Change to the job's directory, and describe this host.

    Raises:
        MachineError: the directory does not exist, or the run directory differs from the starting host's.
    """
    try:
        os.chdir(job["directory"])
    except OSError as error:
        raise MachineError(
            f"cannot enter {job['directory']}: {error.strerror}",
            code="directory-not-shared",
            remedy="start from a directory that every node has, best on a shared file system",
            where=job["directory"],
        ) from error
    if job["token"] is not None:
        _answer_token(Path(job["token"]), job["node"])
    visible = visible_devices({**os.environ, **job["env"]})
    return {
        "machine": _machine(),
        "address": server_address(),
        "client": client_address(),
        "kind": visible.kind,
        "devices": len(visible.ids),
        "note": visible.note,
        "time": time.time(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in COMPARED}},
    }


def endpoint(peers: list[str], env: Mapping[str, str]) -> dict[str, Any]:
    """The endpoint of node 0, which is this host: its address on the route to the others, and a free port.

    Raises:
        InputError: MASTER_PORT is not a port.
        MachineError: there is no route to the others, or MASTER_PORT is taken.
    """
    address = source_address(peers[0])
    if given := env.get("MASTER_PORT"):
        return {"address": address, "port": checked_port(given, address)}
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return {"address": address, "port": probe.getsockname()[1]}


def place_of(start: Mapping[str, Any]) -> NodePlace:
    """The place that was assigned to this node, with its own address and interface on the route to node 0."""
    master, rank = start["master_addr"], start["node_rank"]
    address = source_address(master) if rank else master
    return NodePlace(start["nnodes"], rank, master, start["master_port"], address, interface_of(address))


def server_address() -> str | None:
    """The address of this machine that the ssh connection uses; None without ssh."""
    return _of_connection(2)


def client_address() -> str | None:
    """The address from which the ssh connection comes; None without ssh."""
    return _of_connection(0)


def _of_connection(place: int) -> str | None:
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[place] if len(words) == 4 else None


def _answer_token(token: Path, node: int) -> None:
    """Create a file beside the one that the starting host has put into the run directory."""
    deadline = time.monotonic() + _APPEARS_WITHIN_SECONDS
    # Not is_file(), which raises without permission.
    while not os.access(token, os.F_OK):
        if time.monotonic() > deadline:
            raise MachineError(
                "the run directory is not the one of the machine that starts the job",
                code="run-not-shared",
                remedy="put run_dir on a file system that all nodes share, and that the same user may read on each",
                where=token.parent,
            )
        time.sleep(0.1)
    try:
        token.with_name(f"{token.name}.{node}").touch()
    except OSError as error:
        raise MachineError(
            f"the run directory cannot be written: {error.strerror}",
            code="run-not-writable",
            remedy="mount it for writing, for the same user on every node",
            where=token.parent,
        ) from error


def _machine() -> str:
    """An identifier of this machine or container: equal for two names of the same host."""
    return " ".join((procfs.boot_id(), *map(procfs.namespace, ("net", "pid", "mnt"))))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
