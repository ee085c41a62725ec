"""The network route from here to another host, from the kernel's routing table: nothing is sent."""

from __future__ import annotations

import ipaddress
import socket

import psutil

from ascendtune.core.errors import MachineError

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def source_address(target: str) -> str:
    """The source address of packets from this machine to `target`, a name or an address.

    Raises:
        MachineError: the name does not resolve, or there is no route.
    """
    try:
        family, _, _, _, place = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # Connecting a datagram socket only looks up the route.
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError as error:
        what = "cannot resolve" if isinstance(error, socket.gaierror) else "has no route to"
        raise MachineError(
            f"{socket.gethostname()} {what} {target}: {error.strerror or error}",
            code="no-route-to-host",
            remedy="name the host by an address that every node reaches, or add it to DNS or /etc/hosts on each",
        ) from error


def interface_of(address: str) -> str | None:
    """The network interface that has `address`, as "eth0"; None if none here has it."""
    wanted = ipaddress.ip_address(address)
    for name, entries in psutil.net_if_addrs().items():
        # An IPv6 address is written with its zone, "fe80::1%eth0".
        written = (each.address.partition("%")[0] for each in entries if each.family in _FAMILIES)
        if wanted in map(ipaddress.ip_address, written):
            return name
    return None


def is_loopback(address: str) -> bool:
    """Whether `address` means the machine itself on every machine."""
    return ipaddress.ip_address(address).is_loopback
