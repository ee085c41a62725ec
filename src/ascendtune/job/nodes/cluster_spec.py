"""Which hosts a job wants, and how long it has patience with them."""

from __future__ import annotations

from dataclasses import dataclass

from ascendtune.job.nodes.hosts import Host

_A_START_SECONDS = 600.0
"""A server with eight devices may take that long until it can be reached again."""
_BEFORE_OTHERS_GO_ON_SECONDS = 120.0


@dataclass(frozen=True)
class Wanted:
    """Which hosts, and what of them.

    Attributes:
        nproc: processes on each; None: one per device, or what the host file says.
        min_nodes: with how many a job may begin or go on where others do not answer.
        silence_seconds: after which either side takes the other for lost.
        return_seconds: how long a host that is lost is waited for before a restart; None: long enough for a machine to
            start, less where others may go on without it.
    """

    hosts: tuple[Host, ...]
    nproc: int | None = None
    min_nodes: int | None = None
    silence_seconds: float = 30.0
    return_seconds: float | None = None

    @property
    def fewest(self) -> int:
        return self.min_nodes if self.min_nodes is not None else len(self.hosts)

    @property
    def patience_seconds(self) -> float:
        if self.return_seconds is not None:
            return self.return_seconds
        return _BEFORE_OTHERS_GO_ON_SECONDS if self.fewest < len(self.hosts) else _A_START_SECONDS
