"""`--nodes`: the hosts that a job needs, by name or from a file, and how long it waits for them."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core.errors import InputError

_A_START_SECONDS = 600.0
"""Time for a server with eight devices to reboot."""
_BEFORE_OTHERS_GO_ON_SECONDS = 120.0

# Names that ssh accepts and does not read as an option. It accepts no brackets around an address.
_NAME = re.compile(r"(?P<user>[A-Za-z0-9_][\w.-]*@)?(?:(?P<name>[A-Za-z0-9_:][\w.:%-]*)|\[(?P<address>[\w.:%-]+)\])")


@dataclass(frozen=True)
class TargetHost:
    """A machine on which a node is started."""

    name: str
    """A name for ssh: a host name, an address without brackets, an alias of ~/.ssh/config, with or without `user@`."""
    slots: int | None = None
    """Number of processes, if a host file sets it."""


@dataclass(frozen=True)
class ClusterSpec:
    """The hosts that a job needs, and how long it waits for them.

    Attributes:
        nproc: processes on each; None: one per device, or the number in the host file.
        min_nodes: number of hosts that suffices to start or continue if others do not answer.
        silence_seconds: time without a message after which either side considers the other lost.
        return_seconds: how long a lost host is waited for before a restart; None: long enough for a machine to start,
            less if the others may continue without it.
    """

    hosts: tuple[TargetHost, ...]
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


def hosts_of(text: str) -> tuple[TargetHost, ...]:
    """The hosts in `text`: `host1,host2`, or the path of a file with one `host [slots=N]` per line.

    Raises:
        InputError: an invalid or duplicate name, a line that is not understood, an empty file.
    """
    path = Path(text)
    # A pipe is also a file: --nodes <(scontrol show hostnames).
    if path.is_file() or path.is_fifo():
        lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
        found = [(_host_of_line(line, f"{path}:{number}"), f"{path}:{number}") for number, line in enumerate(lines, 1)]
    elif "/" in text:
        raise InputError(
            f"no such host file: {text}", code="path-missing", remedy="give a file, or names: --nodes host1,host2"
        )
    else:
        found = [(_host(name.strip(), None, "--nodes"), "--nodes") for name in text.split(",")]
    hosts: dict[str, TargetHost] = {}
    for host, where in found:
        if host is not None and host.name in hosts:
            raise InputError(
                f"{host.name} is named twice",
                code="duplicate-host",
                remedy="name each host once; for several processes there use --devices N, or `slots=N` in a host file",
                where=where,
            )
        if host is not None:
            hosts[host.name] = host
    if not hosts:
        raise InputError(
            "the host file names no host",
            code="empty-host-file",
            remedy="write one host per line, as `node1 slots=8`",
            where=path,
        )
    return tuple(hosts.values())


def _host_of_line(line: str, where: str) -> TargetHost | None:
    words = line.partition("#")[0].split()
    if not words:
        return None
    slots = re.fullmatch(r"slots=([1-9]\d{0,3})", words[1]) if len(words) == 2 else None
    if len(words) > 1 and slots is None:
        raise InputError(
            f"not understood: {' '.join(words[1:])}",
            code="invalid-host-line",
            remedy="write one host per line, as `node1 slots=8`",
            where=where,
        )
    return _host(words[0], int(slots[1]) if slots else None, where)


def _host(name: str, slots: int | None, where: str) -> TargetHost:
    parts = _NAME.fullmatch(name)
    host = (parts["address"] or parts["name"]) if parts else ""
    # torchrun and Slurm accept a number of nodes; ssh would try the address 0.0.0.2.
    if parts is None or host.isdecimal() or (":" in host and not _ipv6(host)):
        raise InputError(
            f"'{name}' is not the name of a host",
            code="invalid-host-name",
            remedy="name hosts as ssh takes them: node1,user@node2; a port is set in ~/.ssh/config, the number of "
            "processes with --devices N, or as `node1 slots=8` in a host file",
            where=where,
        )
    if (address := _ipv6(host)) and address.is_link_local:
        # It is valid only together with its interface.
        raise InputError(
            f"'{name}' is a link-local address, which other nodes cannot use",
            code="link-local-host",
            remedy="name the host by an address that every node reaches",
            where=where,
        )
    return TargetHost(f"{parts['user'] or ''}{host}", slots)


def _ipv6(name: str) -> ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.IPv6Address(name)
    return None
