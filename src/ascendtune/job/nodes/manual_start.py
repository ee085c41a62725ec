"""A job of several nodes, started once on each by hand or by a scheduler: torchrun's variables set each node's rank."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.log import warn
from ascendtune.job.command import checked_port
from ascendtune.job.spec import ALONE, NodePlace
from ascendtune.machine.route import interface_of, is_loopback, source_address

VARIABLES = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")

_LOOPBACK = re.compile(r"localhost|127\..*|::1")
_ELSEWHERE = "192.0.2.1"
"""An address for documentation (RFC 5737), which no host has: the route to it is the default route."""


def place_from_environment(env: Mapping[str, str]) -> NodePlace:
    """This node's place from NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT; alone without NNODES, or with 1.

    Raises:
        InputError: a variable is missing or not a number in its range.
        MachineError: there is no route to MASTER_ADDR; or this is node 0, and MASTER_PORT is taken.
    """
    nnodes = _number(env, "NNODES", first=1, last=100_000) if env.get("NNODES") else 1
    if nnodes == 1:
        return ALONE
    node_rank = _number(env, "NODE_RANK", first=0, last=nnodes - 1)
    port = _number(env, "MASTER_PORT", first=1, last=65_535)
    # An IPv6 address may be in brackets, as before a port.
    master = env.get("MASTER_ADDR", "").removeprefix("[").removesuffix("]")
    if not master:
        raise _missing("MASTER_ADDR", "the name or address of node 0, the same on every node")
    address, connect_to = source_address(master), None
    if is_loopback(address) and not _LOOPBACK.fullmatch(master):
        # Debian's /etc/hosts maps a machine's own name to 127.0.1.1, where no other node finds it.
        with suppress(MachineError):
            # A node for which the name is also a loopback address is on this machine, too.
            address = connect_to = source_address(_ELSEWHERE)
            if node_rank == 0:
                warn(
                    f"{master} is a loopback address here: listening on {address}; "
                    f"if {master} has another address for the other nodes, set MASTER_ADDR to that"
                )
    if node_rank == 0:
        checked_port(str(port), address)
    return NodePlace(nnodes, node_rank, master, port, address, interface_of(address), connect_to)


def _number(env: Mapping[str, str], name: str, *, first: int, last: int) -> int:
    given = env.get(name, "").strip()
    if not given:
        raise _missing(name, f"a number from {first} to {last}")
    if not given.isascii() or not given.isdigit() or not first <= int(given) <= last:
        raise InputError(
            f"{name}={given} is not a number from {first} to {last}",
            code="invalid-node-variable",
            remedy=f"set {' '.join(VARIABLES)} on every node, or start all nodes with --nodes",
            where=f"environment variable {name}",
        )
    return int(given)


def _missing(name: str, description: str) -> InputError:
    return InputError(
        f"NNODES is greater than 1, and {name} is not set",
        code="node-variable-missing",
        remedy=f"set it to {description}; or unset NNODES",
        where=f"environment variable {name}",
    )
