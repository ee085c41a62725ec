"""The program of a job, and the place of this machine among its nodes."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ascendtune.machine.visible import Kind

OnHang = Literal["warn", "restart", "stop"]


@dataclass(frozen=True)
class JobSpec:
    """One program, once per device."""

    argv: tuple[str, ...]
    """The program of one rank; torchrun's variables tell it its place (RANK, WORLD_SIZE, …)."""
    run_dir: Path
    """Directory of launcher.log, the ranks' logs and the cause of a failure."""
    nproc: int
    """Number of processes on each node."""
    kind: Kind
    device_ids: tuple[str, ...] | None = None
    """Values of the visibility variable of `kind`; None keeps the user's."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the program that override the user's."""
    max_restarts: int = 0
    """How often a failed job is restarted, from its newest checkpoint."""
    on_hang: OnHang = "warn"
    """Reaction when all heartbeats stop; programs without a heartbeat are not watched."""
    is_foreign: bool = False
    """Whether the program is not ours: all its output is kept as rank_N.log, also rank 0's, and a single process has
    torchrun's variables like one of several."""
    meets_by_address: bool = False
    """Whether its ranks are not ours and use MASTER_ADDR and MASTER_PORT; those of a foreign program always do."""
    holds_interrupts: bool = False
    """Whether it starts with SIGINT blocked and unblocks it when it can handle it, as only our training does."""
    shares_interpreter: bool = False
    """Whether a single process runs its module, `python -m MODULE`, in the interpreter that starts it: nothing has left
    threads or memory in that one, and the job's mark is not searched for in the process itself."""
    id: str = ""
    """Id of the job, the same on every node; made from the run directory's name if none is given."""

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", new_id(self.run_dir.name))

    @property
    def logs(self) -> Path:
        return self.run_dir / "log"

    def launcher_log(self, place: NodePlace) -> Path:
        """The log of a node's torchrun agent."""
        return self.logs / ("launcher.log" if place.node_rank == 0 else f"launcher_node_{place.node_rank}.log")

    def agent_directory(self, place: NodePlace) -> Path:
        """Temporary files of a node's torchrun agent; removed afterwards."""
        return self.logs / f".torchrun_{place.node_rank}"


@dataclass(frozen=True)
class NodePlace:
    """Place of a node among the nodes of its job, in torchrun's terms."""

    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    """Address of node 0 for every node."""
    master_port: int = 0
    """0: there is no rendezvous."""
    address: str | None = None
    """Address of this node for the others; None on one node."""
    interface: str | None = None
    """The network interface of that address."""
    connect_to: str | None = None
    """The address of node 0 if `master_addr` is a name that means a loopback address here."""

    @property
    def is_alone(self) -> bool:
        return self.master_port == 0


ALONE = NodePlace()

_SUFFIX_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
_SUFFIX_LENGTH = 4


def new_id(name: str) -> str:
    """An id that no other job on any machine has: a name, a hyphen and four random letters."""
    plain = re.sub(r"[^\w.]+", "-", name)[:60].strip("-.") or "job"
    return f"{plain}-{''.join(secrets.choice(_SUFFIX_LETTERS) for _ in range(_SUFFIX_LENGTH))}"
