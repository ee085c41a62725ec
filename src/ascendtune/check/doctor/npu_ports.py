"""Reads the network port of each NPU with hccn_tool."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

from ascendtune.check.doctor.system import System
from ascendtune.core.process import Finished
from ascendtune.machine.npu.hccn import (
    LinkHistory,
    UdpSource,
    has_routes,
    is_busy,
    is_unset,
    read_address,
    read_gateway,
    read_health,
    read_link,
    read_link_history,
    read_netmask,
    read_tls,
    read_udp_source,
)
from ascendtune.machine.npu.versions import read_values

_PLACES = ("/usr/local/Ascend/driver/tools/hccn_tool", "/usr/bin/hccn_tool")
HCCN_CONF = "/etc/hccn.conf"
_AT_ONCE = 8
_BUSY_PAUSES = (0.1, 0.3, 1.0)
"""Seconds before a query is repeated for which the tool was busy: it serves one call at a time."""


@dataclass(frozen=True)
class Port:
    """The network port of one NPU; None for unknown values."""

    device: int
    """The physical number of the chip, which the tool takes, in containers as well (HDK 26.1.0, A3 HCCN Tool)."""
    link: str | None
    address: str | None
    netmask: str | None
    has_no_address: bool
    """Whether the tool reports that there is none; otherwise an address that is None is unknown."""
    gateway: str | None
    has_no_gateway: bool
    health: str | None
    tls: bool | None
    udp: UdpSource
    history: LinkHistory


@dataclass(frozen=True)
class NpuPorts:
    """`error`: output of a tool that hangs, or that this user may not run; `ports` is empty then."""

    has_tool: bool
    error: str | None = None
    ports: tuple[Port, ...] = ()
    first_answer: str = ""
    """The output about the link of the first one."""


def npu_ports(system: System) -> NpuPorts:
    """The ports of all NPUs of this machine; read once."""
    return system.once("npu-ports", lambda: _read(system))


def _read(system: System) -> NpuPorts:
    tool = next((str(system.path(place)) for place in _PLACES if system.path(place).exists()), None)
    devices = [int(node.name[7:]) for node in system.npu_nodes]
    if tool is None or not devices:
        return NpuPorts(has_tool=tool is not None)
    # Only the first device: a tool that hangs, or that this user may not run, is called once.
    first = system.run([tool, "-i", str(devices[0]), "-link", "-g"])
    output = f"{first.error}\n{first.output}"
    if first.timed_out or first.exit_code in (126, 127) or "permission denied" in output:
        return NpuPorts(has_tool=True, error=" ".join(output.split())[:200])
    alone = Lock()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        ports = tuple(pool.map(lambda device: _query_port(system, tool, device, alone), devices))
    return NpuPorts(has_tool=True, ports=ports, first_answer=" ".join(output.split())[:200])


def kept_addresses(system: System) -> dict[int, str]:
    """NPU -> the address that hccn_tool keeps for it, and restores from, in /etc/hccn.conf: lines `address_0=…`.

    Source of the path: github.com/hicann/driver, src/custom/network/hccn/ascend910B/hccn_tool/cfg.h.
    """
    names = {name.removeprefix("address_"): value for name, value in read_values(system.text(HCCN_CONF)).items()}
    return {int(name): value for name, value in names.items() if name.isdecimal() and value}


def _query_port(system: System, tool: str, device: int, alone: Lock) -> Port:
    """`alone`: lock for repeated queries, so that these do not keep the tool busy for each other."""

    def asked(question: str) -> Finished:
        return system.run([tool, "-i", str(device), question, "-g"])

    def answer(question: str) -> Finished:
        if not is_busy((done := asked(question)).output + done.error):
            return done
        with alone:
            for pause in _BUSY_PAUSES:
                time.sleep(pause)
                if not is_busy((done := asked(question)).output + done.error):
                    break
        return done

    address, route = answer("-ip"), answer("-route")
    return Port(
        device=device,
        link=read_link(answer("-link").output),
        address=read_address(address.output),
        netmask=read_netmask(address.output),
        has_no_address=is_unset(address.output + address.error),
        gateway=read_gateway(route.output),
        has_no_gateway=has_routes(route.output) and read_gateway(route.output) is None,
        health=read_health(answer("-net_health").output),
        tls=read_tls(answer("-tls").output),
        udp=read_udp_source(answer("-udp").output),
        history=read_link_history(answer("-link_stat").output),
    )
