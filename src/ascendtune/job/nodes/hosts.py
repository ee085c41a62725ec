"""`--nodes`: names of hosts, or a file of them."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core.errors import InputError

# What ssh takes, and nothing that it would read as an option. It takes no brackets around an address.
_NAME = re.compile(r"(?P<user>[A-Za-z0-9_][\w.-]*@)?(?:(?P<name>[A-Za-z0-9_:][\w.:%-]*)|\[(?P<address>[\w.:%-]+)\])")


@dataclass(frozen=True)
class Host:
    """A machine to start a node on."""

    name: str
    """As ssh takes it: a name, an address without brackets, an alias of ~/.ssh/config, with or without `user@`."""
    slots: int | None = None
    """How many processes, where a host file says so."""


def hosts_of(text: str) -> tuple[Host, ...]:
    """The hosts that `text` names: `host1,host2`, or the path of a file with one `host [slots=N]` a line.

    Raises:
        InputError: a name that is none, a host twice, a line that is not understood, an empty file.
    """
    path = Path(text)
    if path.is_file():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found = [(_host_of_line(line, f"{path}:{number}"), f"{path}:{number}") for number, line in enumerate(lines, 1)]
    elif "/" in text:
        raise InputError(f"no such host file: {text}", remedy="give a file, or names: --nodes host1,host2")
    else:
        found = [(_host(name.strip(), None, "--nodes"), "--nodes") for name in text.split(",")]
    hosts: dict[str, Host] = {}
    for host, where in found:
        if host is not None and host.name in hosts:
            raise InputError(
                f"{host.name} is named twice",
                remedy="name each host once; for several processes there use --devices N, or `slots=N` in a host file",
                where=where,
            )
        if host is not None:
            hosts[host.name] = host
    if not hosts:
        raise InputError("the host file names no host", remedy="write one host a line, as `node1 slots=8`", where=path)
    return tuple(hosts.values())


def _host_of_line(line: str, where: str) -> Host | None:
    words = line.partition("#")[0].split()
    if not words:
        return None
    slots = re.fullmatch(r"slots=([1-9]\d{0,3})", words[1]) if len(words) == 2 else None
    if len(words) > 1 and slots is None:
        raise InputError(
            f"not understood: {' '.join(words[1:])}", remedy="write one host a line, as `node1 slots=8`", where=where
        )
    return _host(words[0], int(slots[1]) if slots else None, where)


def _host(name: str, slots: int | None, where: str) -> Host:
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise InputError(
            f"'{name}' is not the name of a host",
            remedy="name hosts as ssh takes them: node1,user@node2; a port belongs into ~/.ssh/config",
            where=where,
        )
    host = parts["address"] or parts["name"]
    if _is_of_one_cable(host):
        raise InputError(
            f"'{name}' means another host on each network: the nodes would not find each other by it",
            remedy="name the host by an address that every node reaches",
            where=where,
        )
    return Host(f"{parts['user'] or ''}{host}", slots)


def _is_of_one_cable(name: str) -> bool:
    """Whether it is a link-local address of IPv6, which holds only with the interface that it is used on."""
    with suppress(ValueError):
        return ipaddress.IPv6Address(name).is_link_local
    return False
