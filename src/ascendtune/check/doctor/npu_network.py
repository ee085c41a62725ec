"""The network port of each NPU, from hccn_tool; used between machines, not within one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.npu_ports import HCCN_CONF, NpuPorts, Port, kept_addresses, npu_ports
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding, failure, ok, unknown, warning
from ascendtune.machine.npu.hccn import is_reachable

NPU_NETWORK = "npu_network"

_MANY_DOWNS = 3
"""A link goes down once or twice while a card starts, and all links do when a switch restarts."""


def _look(system: System) -> Iterator[Finding]:
    if not system.has_npus or not system.npu_nodes:
        return
    answer = npu_ports(system)
    if not answer.has_tool:
        yield unknown(
            NPU_NETWORK,
            say("hccn_tool was not found"),
            remedy=say("mount /usr/local/Ascend/driver/tools; or ask on the host"),
        )
    elif answer.error is not None:
        yield unknown(
            NPU_NETWORK,
            say("hccn_tool does not answer: {error}", error=answer.error),
            remedy=say("run it as root on the host"),
        )
    else:
        yield from _judge(system, answer)


def _judge(system: System, answer: NpuPorts) -> Iterator[Finding]:
    ports = answer.ports
    if all(port.link is None and port.address is None for port in ports):
        yield unknown(
            NPU_NETWORK,
            say("hccn_tool reports neither link nor address: {output}", output=answer.first_answer or say("no output")),
            remedy=say("run `hccn_tool -i {npu} -link -g` by hand", npu=ports[0].device),
        )
        return
    found = [
        *_links(ports),
        *_unstable_links(ports),
        *_addresses(system, ports),
        *_kept(system, ports),
        *_tls(system, ports),
        *_paths(system, ports),
        *_unreported(ports),
    ]
    yield from found
    if not found:
        yield ok(
            NPU_NETWORK,
            say(
                "{count} {count:port|ports}: link up, address set, TLS the same{ports}",
                count=len(ports),
                ports=_spread(ports),
            )
            if all(port.tls is not None for port in ports)
            else say(
                "{count} {count:port|ports}: link up, address set, TLS unknown{ports}",
                count=len(ports),
                ports=_spread(ports),
            ),
        )


def _links(ports: Sequence[Port]) -> Iterator[Finding]:
    if down := [port for port in ports if port.link not in (None, "UP")]:
        yield warning(
            NPU_NETWORK,
            say(
                "the {count:link|links} of NPU {npus} {count:is|are} {names}",
                count=len(down),
                npus=_ids(down),
                names=", ".join(sorted({port.link or "" for port in down})),
            ),
            expected=say("UP on every NPU that communicates with another machine"),
            remedy=say(
                "check cable, transceiver (`hccn_tool -i N -optical -g`), switch port; unused within one machine"
            ),
            evidence=tuple(f"hccn_tool -i {port.device} -link -g: {port.link}" for port in down),
        )
    sick = [port for port in ports if port.health and is_reachable(port.health) is False and port.link == "UP"]
    if sick:
        yield warning(
            NPU_NETWORK,
            say(
                "NPU {npus} {count:does|do} not reach {count:its probe address|their probe addresses} ({health})",
                count=len(sick),
                npus=_ids(sick),
                health=sick[0].health,
            ),
            expected="Success",
            remedy=say("check the gateway and `hccn_tool -i N -netdetect -g`, then ping a peer's NPU address"),
        )


def _unstable_links(ports: Sequence[Port]) -> Iterator[Finding]:
    downs = {port.device: port.history.down_count for port in ports if port.history.down_count is not None}
    fewest = min(downs.values(), default=0)
    unstable = [port for port in ports if downs.get(port.device, 0) >= fewest + _MANY_DOWNS]
    if unstable:
        counts = ", ".join(str(downs[port.device]) for port in unstable)
        yield warning(
            NPU_NETWORK,
            say(
                "the {count:link|links} of NPU {npus} went down {counts} times since the {count:card|cards} started, "
                "others {fewest} times",
                count=len(unstable),
                npus=_ids(unstable),
                counts=counts,
                fewest=fewest,
            ),
            expected=say("about as often as the other links of the machine"),
            remedy=say(
                "check cable, transceiver (`hccn_tool -i N -optical -g`) and switch port: a link "
                "that goes down for a moment during a collective stops the job"
            ),
            evidence=tuple(
                f"NPU {port.device}, {time}: {state}" for port in unstable for time, state in port.history.records[:3]
            ),
        )


def _addresses(system: System, ports: Sequence[Port]) -> Iterator[Finding]:
    without = [port for port in ports if port.has_no_address and port.link == "UP"]
    kept = kept_addresses(system)
    if lost := [port for port in without if port.device in kept]:
        yield warning(
            NPU_NETWORK,
            say(
                "NPU {npus} {count:has|have} no network address, although {file} has {count:one|some}",
                count=len(lost),
                npus=_ids(lost),
                file=HCCN_CONF,
            ),
            expected=", ".join(kept[port.device] for port in lost),
            remedy=_on_host(system, "sudo hccn_tool -a -cfg recovery"),
        )
    if never := [port for port in without if port.device not in kept]:
        yield warning(
            NPU_NETWORK,
            say("NPU {npus} {count:has|have} no network address", count=len(never), npus=_ids(never)),
            expected=say("an address on every NPU, in one subnet per rail"),
            remedy=_on_host(system, _set_address(never[0])),
        )
    counts = Counter(port.address for port in ports if port.address)
    if twice := [address for address, count in counts.items() if count > 1]:
        yield failure(
            NPU_NETWORK,
            say(
                "NPU {npus} share the address {names}",
                npus=_ids([port for port in ports if port.address in twice]),
                names=", ".join(twice),
            ),
            expected=say("one address for each NPU"),
            remedy=_on_host(system, _set_address(next(port for port in reversed(ports) if port.address in twice))),
        )
    direct = [port for port in ports if port.address and port.has_no_gateway]
    if direct and any(port.gateway for port in ports):
        yield warning(
            NPU_NETWORK,
            say("NPU {npus} {count:has|have} no gateway, other NPUs have one", count=len(direct), npus=_ids(direct)),
            expected=say("a gateway on all or on none"),
            remedy=_on_host(system, f"sudo hccn_tool -i {direct[0].device} -gateway -s gateway <GATEWAY>"),
        )


def _kept(system: System, ports: Sequence[Port]) -> Iterator[Finding]:
    """Rank tables and services such as Mooncake read the file, not the device (vllm-ascend pull request 16847)."""
    kept = kept_addresses(system)
    other = [port for port in ports if port.address and kept.get(port.device, port.address) != port.address]
    if other:
        yield warning(
            NPU_NETWORK,
            say(
                "{file} has {count:another address|other addresses} than NPU {npus}",
                file=HCCN_CONF,
                count=len(other),
                npus=_ids(other),
            ),
            expected=say("equal addresses: rank tables are made from the file, and it is restored from"),
            remedy=_on_host(system, _set_address(other[0], other[0].address or "")),
            evidence=tuple(f"NPU {port.device}: {port.address}; {HCCN_CONF}: {kept[port.device]}" for port in other),
        )


def _set_address(port: Port, address: str = "<ADDRESS>") -> str:
    """The command, which also writes /etc/hccn.conf."""
    netmask = port.netmask or "<NETMASK>"
    return f"sudo hccn_tool -i {port.device} -ip -s address {address} netmask {netmask}"


def _on_host(system: System, command: str) -> str:
    """Containers that are not privileged may only query (HDK 26.1.0, A3 HCCN Tool); numbers of chips are the host's."""
    return say("on the host: {command}", command=command) if system.in_container else command


def _tls(system: System, ports: Sequence[Port]) -> Iterator[Finding]:
    switches = {port.tls for port in ports if port.tls is not None}
    if len(switches) > 1:
        yield failure(
            NPU_NETWORK,
            say("TLS is on for NPU {npus} and off for the others", npus=_ids([port for port in ports if port.tls])),
            expected=say("the same on every NPU of a job"),
            remedy=_on_host(system, _for_each(ports, "-tls -s enable 0")),
        )


def _paths(system: System, ports: Sequence[Port]) -> Iterator[Finding]:
    modes = sorted({port.udp.mode for port in ports if port.udp.mode})
    if len(modes) > 1:
        each = (f"{mode} for NPU {_ids([port for port in ports if port.udp.mode == mode])}" for mode in modes)
        yield warning(
            NPU_NETWORK,
            say("RoCE's UDP source port is set in {count} ways: {names}", count=len(modes), names=say("; ").join(each)),
            expected=say("the same on every NPU, auto where several machines meet at a switch"),
            remedy=_on_host(system, _for_each(ports, "-udp -s auto")),
        )


def _unreported(ports: Sequence[Port]) -> Iterator[Finding]:
    if silent := [port for port in ports if port.link is None]:
        yield unknown(
            NPU_NETWORK,
            say("hccn_tool does not report the {count:link|links} of NPU {npus}", count=len(silent), npus=_ids(silent)),
            remedy=say("run `hccn_tool -i {npu} -link -g` by hand", npu=silent[0].device),
        )
    if silent := [port for port in ports if port.link and port.address is None and not port.has_no_address]:
        yield unknown(
            NPU_NETWORK,
            say(
                "hccn_tool does not report the {count:address|addresses} of NPU {npus}",
                count=len(silent),
                npus=_ids(silent),
            ),
            remedy=say("run `hccn_tool -i {npu} -ip -g` by hand", npu=silent[0].device),
        )


def _for_each(ports: Sequence[Port], words: str) -> str:
    ids = " ".join(str(port.device) for port in ports)
    return f"for i in {ids}; do sudo hccn_tool -i $i {words}; done"


def _spread(ports: Sequence[Port]) -> str:
    """UDP source ports in words: fixed ports work on one machine and are slow between many."""
    if not all(port.udp.mode for port in ports):
        return say("; UDP source ports unknown")
    if any(port.udp.mode != "custom" for port in ports):
        return say("; UDP source ports spread")
    numbers = ", ".join(map(str, sorted({port.udp.port for port in ports if port.udp.port})))
    template = "; UDP source ports fixed ({numbers}): between machines `-udp -s auto` spreads flows over paths"
    return say(template, numbers=numbers)


def _ids(ports: Sequence[Port]) -> str:
    return ", ".join(str(port.device) for port in ports)


NPU_NETWORK_CHECK = Check(
    NPU_NETWORK,
    what="Reads link state and history, address, gateway, health, TLS and UDP source port of every NPU with hccn_tool, "
    "and compares the addresses with /etc/hccn.conf.",
    why="Between machines, each NPU communicates through its own port. A port that is down, or whose TLS setting "
    "differs, keeps the whole job from connecting (EI0006, EI0014, EI0016), and the message rarely names it.",
    fix="Link down, or down more often than others: check cable, transceiver and switch. No address: hccn_tool -ip -s, "
    "or `hccn_tool -a -cfg recovery`, which restores those of /etc/hccn.conf. "
    "TLS: use the same setting on all cards of all nodes; `hccn_tool -i N -tls -s enable 0` turns it off. Several "
    "machines that are slow together: `hccn_tool -i N -udp -s auto` spreads flows over paths through the switches. "
    "Within one machine, cards use HCCS, and a port that is down does not matter.",
    look=_look,
)
