"""The command of a job: the program itself for one process, torchrun's agent around it for several."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.suggest import path_suggestion
from ascendtune.job.spec import ALONE, JobSpec, NodePlace

LOOPBACK = "127.0.0.1"
_JOIN_SECONDS = 900
"""Time for nodes that are started by hand to wait for each other."""


def command(spec: JobSpec, env: Mapping[str, str], place: NodePlace = ALONE) -> list[str]:
    """The command that starts `spec` on this machine.

    Args:
        env: the user's environment; its MASTER_PORT is the port of the rendezvous of the user's own program, otherwise
            a free one is used.

    Raises:
        InputError: MASTER_PORT is not a port.
        MachineError: MASTER_PORT is taken.
    """
    if spec.nproc == 1 and place.is_alone and not spec.is_foreign:
        return list(spec.argv)
    return [
        # -P: Python files of the working directory are not imported; torchrun's --module would do so.
        *(sys.executable, "-P", "-m", "ascendtune.job.torchrun"),
        *("--nproc-per-node", str(spec.nproc)),
        *("--max-restarts", "0"),
        *("--log-dir", str(spec.agent_directory(place))),
        *(_on_this_node(spec, env) if place.is_alone else _among_nodes(place)),
        *("--no-python", sys.executable, "-u", "-P", "-m", "ascendtune.job.rank"),
        *(("--all",) if spec.is_foreign else ("--hold",) if spec.holds_interrupts else ()),
        str(spec.logs),
        *spec.argv,
    ]


def _on_this_node(spec: JobSpec, env: Mapping[str, str]) -> list[str]:
    # --local-addr: otherwise torchrun looks up the name of this machine in DNS, which may fail.
    return [*("--nnodes", "1"), *_one_host_rendezvous(spec, env), *("--local-addr", LOOPBACK)]


def _one_host_rendezvous(spec: JobSpec, env: Mapping[str, str]) -> list[str]:
    """Ranks of ours need no port; the ranks of a user's program use MASTER_ADDR and MASTER_PORT."""
    if not (spec.is_foreign or spec.meets_by_address):
        return ["--rdzv-backend", "file"]
    given = env.get("MASTER_PORT")
    port = checked_port(given, LOOPBACK) if given else 0
    return ["--rdzv-backend", "address", "--rdzv-endpoint", f"{LOOPBACK}:{port}"]


def _among_nodes(place: NodePlace) -> list[str]:
    # Rank 0 is on node 0, and ranks follow the order of the nodes. torchrun's elastic rendezvous would sort nodes by
    # their addresses, and its agents would continue by themselves after the job is ended.
    host = place.connect_to or place.master_addr
    host = f"[{host}]" if ":" in host else host
    return [
        *("--nnodes", str(place.nnodes)),
        *("--rdzv-backend", "address"),
        *("--rdzv-endpoint", f"{host}:{place.master_port}"),
        *("--rdzv-conf", f"rank={place.node_rank},timeout={_JOIN_SECONDS}"),
        *(("--local-addr", place.address) if place.address else ()),
    ]


def checked_port(given: str, address: str) -> int:
    """The port that the user has set by MASTER_PORT, if a server can listen on it.

    Args:
        address: address of this machine on which the server will listen.

    Raises:
        InputError: it is not a port.
        MachineError: it is taken.
    """
    if not given.isdecimal() or len(given) > 5 or not 0 < int(given) < 65536:
        raise InputError(
            f"MASTER_PORT={given} is not a port",
            code="invalid-node-variable",
            remedy="set a number from 1 to 65535, or unset it to use a free port",
            where="environment variable MASTER_PORT",
        )
    # With the options of the store's socket; a port in TIME_WAIT is free.
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, int(given)), family=family).close()
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        raise MachineError(
            f"port {given} {reason}",
            code="port-unavailable",
            remedy="choose another; or, if one command starts all ranks, unset MASTER_PORT to use a free port",
            where="environment variable MASTER_PORT",
        ) from error
    return int(given)


def program(word: str) -> str:
    """The absolute path of the program that `word` names: a path, or the name of a program in PATH.

    Raises:
        InputError: it does not exist, or the operating system cannot start it.
    """
    path = Path(shutil.which(word) or word)
    if path.is_dir():
        raise InputError(
            "this is a directory, not a program",
            code="not-a-program",
            remedy="name a program, then its arguments",
            where=path,
        )
    if not path.is_file():
        otherwise = "check its name and PATH"
        remedy = path_suggestion(path, otherwise) if "/" in word or path.suffix else otherwise
        raise InputError(f"no such program: '{word}'", code="program-missing", remedy=remedy)
    if not os.access(path, os.X_OK):
        given = shlex.quote(word)
        remedy = (
            f"start it as `python {given}`" if path.suffix == ".py" else f"chmod +x {given}, or name its interpreter"
        )
        raise InputError(f"'{word}' is not executable", code="program-not-executable", remedy=remedy, where=path)
    if not _can_start(path):
        start = f"python {shlex.quote(word)}" if path.suffix == ".py" else ""
        remedy = f"start it as `{start}`" if start else "name its interpreter, as `bash script`"
        raise InputError(
            f"'{word}' is neither a program nor a script with #! in its first line", code="not-a-program", remedy=remedy
        )
    return str(path.absolute())


def _can_start(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4).startswith((b"#!", b"\x7fELF"))
    except OSError:
        # A program that may be executed but not read.
        return True
