"""A job as an argv: the program itself for one process, torchrun's agent around it for several."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Mapping

from ascendtune.core.errors import InputError, MachineError
from ascendtune.job.spec import ALONE, JobSpec, Place

_JOIN_SECONDS = 900
"""How long nodes that are started by hand may wait for each other."""


def command(spec: JobSpec, env: Mapping[str, str], place: Place = ALONE) -> list[str]:
    """The argv that starts `spec` on this machine.

    Args:
        env: the user's environment; MASTER_PORT in it is the port of the rendezvous, otherwise a free one is found.

    Raises:
        InputError: MASTER_PORT is not a port.
        MachineError: MASTER_PORT is taken.
    """
    if spec.nproc == 1 and place.is_alone and not spec.is_foreign:
        return list(spec.argv)
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nproc-per-node", str(spec.nproc)),
        *("--max-restarts", "0"),
        *("--log-dir", str(spec.agent_directory(place))),
        *(_on_this_node(env) if place.is_alone else _among_nodes(place)),
        *("--module", "ascendtune.job.rank", *(("--all",) if spec.is_foreign else ()), str(spec.logs)),
        *spec.argv,
    ]


def _on_this_node(env: Mapping[str, str]) -> list[str]:
    given = env.get("MASTER_PORT")
    # 127.0.0.1 and --local-addr: torchrun otherwise asks DNS for the name of this machine, which may not resolve.
    return [
        *("--nnodes", "1"),
        *("--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", f"127.0.0.1:{checked_port(given) if given else 0}"),
        *("--local-addr", "127.0.0.1"),
    ]


def _among_nodes(place: Place) -> list[str]:
    # The static rendezvous: rank 0 is on node 0, and ranks follow the order of the nodes. The elastic one sorts nodes
    # by their addresses, and its agents go on by themselves where whoever started them wants to end them.
    return [
        *("--nnodes", str(place.nnodes)),
        *("--node-rank", str(place.node_rank)),
        *("--rdzv-backend", "static"),
        *("--master-addr", place.master_addr),
        *("--master-port", str(place.master_port)),
        *("--rdzv-conf", f"timeout={_JOIN_SECONDS}"),
        *(("--local-addr", place.address) if place.address else ()),
    ]


def checked_port(given: str) -> int:
    """The port that the user has given by MASTER_PORT, when a server can listen there.

    Raises:
        InputError: it is not a port.
        MachineError: it is taken.
    """
    if not given.isdigit() or not 0 < int(given) < 65536:
        raise InputError(
            f"MASTER_PORT={given} is not a port",
            remedy="set a number from 1 to 65535, or unset it: a free port is found then",
            where="environment variable MASTER_PORT",
        )
    # As torch's store will, at all addresses, whichever the others come by; a port in TIME_WAIT is free.
    dualstack = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dualstack else socket.AF_INET
    try:
        socket.create_server(("", int(given)), family=family, dualstack_ipv6=dualstack).close()
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        raise MachineError(
            f"port {given} {reason}",
            remedy="choose another, or unset MASTER_PORT where one command starts everything: a free port is found",
            where="environment variable MASTER_PORT",
        ) from error
    return int(given)
