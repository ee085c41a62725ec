"""HCCL's network interfaces and time-outs on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import Interface, System
from ascendtune.check.finding import Finding, failure, ok, warning
from ascendtune.machine.npu.chip_family import family_of

HCCL_HOST = "hccl_host"

_SOCKETS = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_SOCKET_TABLES, _LISTENS = ("/proc/net/tcp", "/proc/net/tcp6"), "0A"
_TORCHRUN_PORT, _HCCL_PORT, _HCCL_PORTS = 29500, 60000, 32
"""Ports of torchrun's store and, from HCCL_IF_BASE_PORT on, of HCCL's ranks on the host (vendor's documentation; before
servers with 16 chips 16)."""
_CONNECT_SECONDS, _EXEC_SECONDS, _NEVER = 120, 1836, 0
"""Defaults of HCCL_CONNECT_TIMEOUT and HCCL_EXEC_TIMEOUT (vendor's documentation). Where HCCL_EVENT_TIMEOUT is not set,
torch_npu waits 30 s longer than HCCL_EXEC_TIMEOUT says (ProcessGroupHCCL.cpp, 2.6 to 2.12), so the order is right."""
_AIV_SECONDS = 1091
"""The longest HCCL_EXEC_TIMEOUT where the AI cores themselves communicate; it may be 0.05 then, too (same source)."""
_NUMBERS: dict[str, tuple[int, int | None, int]] = {
    "HCCL_IF_BASE_PORT": (1024, 65520, 1),
    "HCCL_RDMA_TC": (0, 255, 4),
    "HCCL_RDMA_SL": (0, 7, 1),
    "HCCL_RDMA_RETRY_CNT": (1, 7, 1),
    "HCCL_RDMA_QPS_PER_CONNECTION": (1, 32, 1),
    "HCCL_MULTI_QP_THRESHOLD": (1, 8192, 1),
    "HCCL_BUFFSIZE": (1, None, 1),
}
"""Smallest and largest value, and what it must be a multiple of: github.com/hicann/hccl, docs/zh/user_guide/hccl_env.
HCCL does not start with any other value (EI0001: fault_diagnosis/env_config_error_EI0001.md beside that)."""
_RDMA_TIMEOUT = {
    "ascend910b": (5, 20, 1),
    "ascend910_93": (5, 20, 1),
    "ascend910": (5, 24, 1),
    "ascend310p": (5, 24, 1),
}
"""HCCL_RDMA_TIMEOUT, by family of chips; source as above."""
_WORDS = {
    "HCCL_DETERMINISTIC": ("true", "false", "strict"),
    "HCCL_INTER_HCCS_DISABLE": ("true", "false"),
    "HCCL_RDMA_PCIE_DIRECT_POST_NOSTRICT": ("true", "false"),
    "HCCL_DIAGNOSE_ENABLE": ("0", "1"),
    "HCCL_ENTRY_LOG_ENABLE": ("0", "1"),
    "HCCL_INTRA_ROCE_ENABLE": ("0", "1"),
    "HCCL_INTRA_PCIE_ENABLE": ("0", "1"),
    "HCCL_WHITELIST_DISABLE": ("0", "1"),
    "HCCL_SOCKET_FAMILY": ("af_inet", "af_inet6"),
}
"""Values in lower case; source as above."""


def _look(system: System) -> Iterator[Finding]:
    interfaces = system.interfaces()
    is_asked = any(system.env.get(name) for name in (*_SOCKETS, "MASTER_PORT")) or system.needs is not None
    if not system.has_npus and not system.gpus[0] and not is_asked:
        return
    found = [*_names(system.env, interfaces), *_address(system.env, interfaces)]
    if system.has_npus:
        found += [*_waits(system.env), *_values(system)]
    found += _taken_ports(system)
    yield from found
    if not found:
        usable = [name for name, each in interfaces.items() if each.is_up and _is_real(name)]
        yield ok(
            HCCL_HOST,
            say(
                "interfaces that ranks can meet on: {value}",
                value=", ".join(usable) or "only lo, enough for one machine",
            ),
        )


def _is_real(name: str) -> bool:
    return not name.startswith(("lo", "docker", "veth", "br-", "virbr"))


def _names(env: Mapping[str, str], interfaces: Mapping[str, Interface]) -> Iterator[Finding]:
    for variable in _SOCKETS:
        value = env.get(variable, "")
        if not value or value.startswith("^"):
            continue
        of_gloo = variable.startswith(("GLOO", "TP"))
        exact = value.startswith("=") or of_gloo
        names = value.removeprefix("=").split(",")
        # HCCL and NCCL take the first interface that one of the names fits, Gloo each of them.
        for choice in [[name] for name in names] if of_gloo else [names]:
            matching = [
                each
                for each in interfaces
                if any(each == name or (not exact and each.startswith(name)) for name in choice)
            ]
            up = [each for each in matching if interfaces[each].is_up]
            if not up:
                yield _without_interface(variable, value, matching, interfaces)
            elif not any(map(_is_real, up)):
                what = "{variable}={value}: {up} does not reach other machines"
                yield warning(
                    HCCL_HOST,
                    say(what, variable=variable, value=value, up=up[0]),
                    expected=say("the interface that reaches the other nodes"),
                    remedy=say(
                        "change {variable} for jobs on several machines; on one machine it works", variable=variable
                    ),
                )


def _without_interface(variable: str, value: str, down: list[str], interfaces: Mapping[str, Interface]) -> Finding:
    state = (
        say("{names} {count:is|are} down", count=len(down), names=", ".join(down)) if down else say("no such interface")
    )
    others = ", ".join(each for each in interfaces if _is_real(each)) or ", ".join(interfaces)
    how = "export {variable}=<interface to the other nodes>, or unset it for jobs on one machine"
    return failure(
        HCCL_HOST,
        f"{variable}={value}: {state}",
        expected=say("one of {others}", others=others),
        remedy=say(how, variable=variable),
    )


def _address(env: Mapping[str, str], interfaces: Mapping[str, Interface]) -> Iterator[Finding]:
    value = env.get("HCCL_IF_IP")
    if value is None:
        return
    # HCCL takes "ADDRESS%INTERFACE", too; psutil shows link-local addresses of IPv6 like that.
    own = [address.partition("%")[0] for each in interfaces.values() for address in each.addresses]
    try:
        known = str(ip_address(value.partition("%")[0])) in own
    except ValueError:
        known = False
    if not known:
        yield failure(
            HCCL_HOST,
            say("HCCL_IF_IP={value} is not an address of this machine", value=value),
            expected=say("an address of one of its interfaces; it takes precedence over HCCL_SOCKET_IFNAME"),
            remedy=say("unset HCCL_IF_IP, or set it on each node to that node's address"),
        )


def _waits(env: Mapping[str, str]) -> Iterator[Finding]:
    connect = _seconds(env, "HCCL_CONNECT_TIMEOUT", _CONNECT_SECONDS)
    is_aiv = env.get("HCCL_OP_EXPANSION_MODE", "").upper() == "AIV"
    running = _AIV_SECONDS if is_aiv else _seconds(env, "HCCL_EXEC_TIMEOUT", _EXEC_SECONDS)
    event = _seconds(env, "HCCL_EVENT_TIMEOUT", _NEVER)
    if connect is None or not 120 <= connect <= 7200:
        yield failure(
            HCCL_HOST,
            say("{name}={value} is rejected (EI0001)", name="HCCL_CONNECT_TIMEOUT", value=env["HCCL_CONNECT_TIMEOUT"]),
            expected=say("whole seconds, 120 to 7200, the same on all nodes"),
            remedy=say("export HCCL_CONNECT_TIMEOUT=1200"),
        )
    if running is None or event is None:
        name = "HCCL_EXEC_TIMEOUT" if running is None else "HCCL_EVENT_TIMEOUT"
        yield failure(
            HCCL_HOST,
            say("{name}={env} is not a number", name=name, env=env[name]),
            expected=say("whole seconds"),
            remedy=say("unset {name}", name=name),
        )
    elif event != _NEVER and (running >= event or running == _NEVER):
        yield warning(
            HCCL_HOST,
            say(
                "HCCL_EXEC_TIMEOUT={running} is not below HCCL_EVENT_TIMEOUT={event}: the event "
                "times out first, and its message does not name a rank",
                running=running,
                event=event,
            ),
            expected=say("HCCL_EVENT_TIMEOUT above HCCL_EXEC_TIMEOUT, or 0 for both"),
            remedy=say("unset HCCL_EVENT_TIMEOUT: torch_npu then waits longer than HCCL_EXEC_TIMEOUT"),
        )


def _values(system: System) -> Iterator[Finding]:
    """Values of HCCL's variables that it rejects."""
    families = {family.directory for each in system.npu_smi[0].devices if (family := family_of(each.name or ""))}
    times = [_RDMA_TIMEOUT[each] for each in families if each in _RDMA_TIMEOUT]
    numbers = {**_NUMBERS, **({"HCCL_RDMA_TIMEOUT": times[0]} if len(times) == 1 else {})}
    for name, (least, most, multiple) in numbers.items():
        value = system.env.get(name)
        is_fit = value is not None and value.isdecimal() and least <= int(value) <= (most or int(value))
        if value and not (is_fit and int(value) % multiple == 0):
            bounds = (
                say("a whole number of {least} or more", least=least)
                if most is None
                else say("a whole number, {least} to {most}", least=least, most=most)
            )
            yield _rejected(
                name, value, bounds + (say(", a multiple of {multiple}", multiple=multiple) if multiple > 1 else "")
            )
    for name, words in _WORDS.items():
        value = system.env.get(name)
        if value and value.lower() not in words:
            # AF_INET is a constant of C, which users write as it is.
            names = (word.upper() if word.startswith("af_") else word for word in words)
            yield _rejected(name, value, say("one of {others}", others=", ".join(names)))


def _rejected(name: str, value: str, expected: str) -> Finding:
    return failure(
        HCCL_HOST,
        say("{name}={value} is rejected (EI0001)", name=name, value=value),
        expected=expected,
        remedy=say("unset {name}", name=name),
    )


def _taken_ports(system: System) -> Iterator[Finding]:
    """A warning if ports that a job on this machine will listen on are in use, by the kernel's tables of sockets."""
    listening = _listening(system)
    rendezvous = {int(port) for port in (system.env.get("MASTER_PORT", ""), str(_TORCHRUN_PORT)) if port.isdecimal()}
    ports = _hccl_ports(system.env) if system.has_npus else set()
    taken = sorted(listening.keys() & (rendezvous | ports))
    if not taken:
        return
    names = ", ".join(map(str, taken))
    first = min(ports, default=_HCCL_PORT)
    holders = ((port, _holder(system, listening[port])) for port in taken)
    yield warning(
        HCCL_HOST,
        say("port {names} of torchrun or HCCL already in use on this machine", names=names)
        if len(taken) == 1
        else say("ports {names} of torchrun or HCCL already in use on this machine", names=names),
        expected=say("{ports} free, unless a job runs now", ports=_expected(rendezvous, ports)),
        remedy=say(
            "`ss -ltnp 'sport = :{port}'` names the process; or choose others: --master_port {free}, "
            "HCCL_IF_BASE_PORT={base}",
            port=taken[0],
            free=next(port for port in range(_TORCHRUN_PORT + 1, 1 << 16) if port not in listening),
            base=first + 1000,
        ),
        evidence=tuple(f"{port}: {holder}" for port, holder in holders if holder),
    )


def _expected(rendezvous: set[int], ports: set[int]) -> str:
    names = ", ".join(map(str, sorted(rendezvous)))
    return say("{names} and {first} to {last}", names=names, first=min(ports), last=max(ports)) if ports else names


def _listening(system: System) -> dict[int, str]:
    """Port -> inode of the socket that listens on it."""
    lines = [line.split() for name in _SOCKET_TABLES for line in system.text(name).splitlines()[1:]]
    return {
        int(words[1].rpartition(":")[2], 16): words[9] for words in lines if len(words) > 9 and words[3] == _LISTENS
    }


def _hccl_ports(env: Mapping[str, str]) -> set[int]:
    """HCCL's ports on the host; HCCL_HOST_SOCKET_PORT_RANGE overrides HCCL_IF_BASE_PORT (vendor's documentation)."""
    given = env.get("HCCL_HOST_SOCKET_PORT_RANGE", "")
    if given == "auto":
        return set()
    bounds = [part.partition("-")[::2] for part in given.split(",")]
    if given and all(low.isdecimal() and (high or low).isdecimal() for low, high in bounds):
        return {port for low, high in bounds for port in range(int(low), min(int(high or low), 1 << 16) + 1)}
    base = env.get("HCCL_IF_BASE_PORT", "")
    first = int(base) if base.isdecimal() else _HCCL_PORT
    return set(range(first, first + _HCCL_PORTS))


def _holder(system: System, inode: str) -> str | None:
    """Pid and name of the process with a socket, if this user may see it."""
    holders = (f"pid {pid} ({name})" for pid, name, targets in system.open_files() if f"socket:[{inode}]" in targets)
    return next(holders, None)


def _seconds(env: Mapping[str, str], name: str, default: int) -> int | None:
    value = env.get(name)
    if value is None:
        return default
    return int(value) if value.isdecimal() else None


HCCL_HOST_CHECK = Check(
    HCCL_HOST,
    what="Compares HCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and HCCL_IF_IP with the interfaces of this machine, and the "
    "time-outs with each other; checks whether HCCL accepts the values of its variables, and whether MASTER_PORT and "
    "the ports of torchrun (29500) and HCCL (60000 to 60031, or as HCCL_IF_BASE_PORT and HCCL_HOST_SOCKET_PORT_RANGE "
    "say) are free.",
    why="A wrong interface name stops the job before its first step (EI0001, Gloo connectFullMesh); a script copied "
    "from another node has that node's name. Time-outs in the wrong order hide which rank was late.",
    fix="Set the interface that reaches the other nodes, on each node with its own name. Keep HCCL_CONNECT_TIMEOUT "
    "between 120 and 7200 and equal everywhere, and HCCL_EVENT_TIMEOUT above HCCL_EXEC_TIMEOUT.",
    look=_look,
)
