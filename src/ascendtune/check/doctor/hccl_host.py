"""What HCCL is told about the host's network, and how long it waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Interface, Outside
from ascendtune.check.finding import Finding, ok

CODE = "hccl_host"

_SOCKETS = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_CONNECT_SECONDS, _EXEC_SECONDS, _EVENT_SECONDS = 120, 1836, 1868
"""Defaults of HCCL_CONNECT_TIMEOUT, HCCL_EXEC_TIMEOUT, HCCL_EVENT_TIMEOUT (vendor's documentation)."""


def _look(outside: Outside) -> Iterator[Finding]:
    interfaces = outside.interfaces()
    if not outside.has_npus and not any(outside.env.get(name) for name in _SOCKETS):
        return
    found = [*_names(outside.env, interfaces), *_address(outside.env, interfaces)]
    if outside.has_npus:
        found += _waits(outside.env)
    yield from found
    if not found:
        usable = [name for name, each in interfaces.items() if each.is_up and _is_real(name)]
        yield ok(CODE, f"interfaces that ranks can meet on: {', '.join(usable) or 'only lo, enough for one machine'}")


def _is_real(name: str) -> bool:
    return not name.startswith(("lo", "docker", "veth", "br-", "virbr"))


def _names(env: Mapping[str, str], interfaces: Mapping[str, Interface]) -> Iterator[Finding]:
    for variable in _SOCKETS:
        value = env.get(variable, "")
        if not value or value.startswith("^"):
            continue
        for name in value.removeprefix("=").split(","):
            exact = value.startswith("=") or variable.startswith(("GLOO", "TP"))
            fitting = [each for each in interfaces if each == name or (not exact and each.startswith(name))]
            up = [each for each in fitting if interfaces[each].is_up]
            if not up:
                state = f"{', '.join(fitting)} is down" if fitting else "no interface has that name"
                others = ", ".join(each for each in interfaces if _is_real(each)) or ", ".join(interfaces)
                yield Finding(
                    CODE,
                    "failure",
                    f"{variable}={value}: {state}",
                    expected=f"one of {others}",
                    remedy=f"export {variable}=<interface to the other nodes>, or unset it on one machine",
                )
            elif not any(map(_is_real, up)):
                yield Finding(
                    CODE,
                    "warning",
                    f"{variable}={value}: {up[0]} reaches no other machine",
                    expected="the interface that reaches the other nodes",
                    remedy=f"on one machine it does no harm; for several, change {variable}",
                )


def _address(env: Mapping[str, str], interfaces: Mapping[str, Interface]) -> Iterator[Finding]:
    value = env.get("HCCL_IF_IP")
    if value is None:
        return
    own = [address for each in interfaces.values() for address in each.addresses]
    try:
        known = str(ip_address(value)) in own
    except ValueError:
        known = False
    if not known:
        yield Finding(
            CODE,
            "failure",
            f"HCCL_IF_IP={value} is no address of this machine",
            expected="an address of one of its interfaces; it goes before HCCL_SOCKET_IFNAME",
            remedy="unset HCCL_IF_IP, or set it anew on each node",
        )


def _waits(env: Mapping[str, str]) -> Iterator[Finding]:
    connect = _seconds(env, "HCCL_CONNECT_TIMEOUT", _CONNECT_SECONDS)
    running = _seconds(env, "HCCL_EXEC_TIMEOUT", _EXEC_SECONDS)
    event = _seconds(env, "HCCL_EVENT_TIMEOUT", _EVENT_SECONDS)
    if connect is None or not 120 <= connect <= 7200:
        yield Finding(
            CODE,
            "failure",
            f"HCCL_CONNECT_TIMEOUT={env['HCCL_CONNECT_TIMEOUT']} is refused (EI0001)",
            expected="whole seconds, 120 to 7200, the same on all nodes",
            remedy="export HCCL_CONNECT_TIMEOUT=1200",
        )
    if running is None or event is None:
        name = "HCCL_EXEC_TIMEOUT" if running is None else "HCCL_EVENT_TIMEOUT"
        yield Finding(
            CODE, "failure", f"{name}={env[name]} is no number", expected="whole seconds", remedy=f"unset {name}"
        )
    elif event and (running >= event or running == 0):
        yield Finding(
            CODE,
            "warning",
            f"HCCL_EXEC_TIMEOUT={running} is not below HCCL_EVENT_TIMEOUT={event}: the event gives up first, and its "
            "message names no rank",
            expected="HCCL_EVENT_TIMEOUT above HCCL_EXEC_TIMEOUT, or 0 for both",
            remedy=f"export HCCL_EVENT_TIMEOUT={running + 32 if running else 0}",
        )


def _seconds(env: Mapping[str, str], name: str, default: int) -> int | None:
    value = env.get(name)
    if value is None:
        return default
    return int(value) if value.isdecimal() else None


CHECK = Check(
    CODE,
    what="Holds HCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and HCCL_IF_IP against the interfaces of this machine, and the "
    "time-outs against each other.",
    why="A wrong interface name stops the job before its first step (EI0001, Gloo connectFullMesh); a script that was "
    "copied from another node has the other node's. Time-outs in the wrong order hide which rank was late.",
    fix="Name the interface that reaches the other nodes, on each node by its own name. Keep HCCL_CONNECT_TIMEOUT "
    "between 120 and 7200 and equal everywhere, and HCCL_EVENT_TIMEOUT above HCCL_EXEC_TIMEOUT.",
    look=_look,
)
