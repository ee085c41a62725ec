"""The check of `--nodes` that compares the network ports of the nodes' NPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding, failure, ok, warning
from ascendtune.check.nodes.compare import all_nodes
from ascendtune.check.nodes.node_report import NodePort
from ascendtune.machine.npu.super_pod import SuperPodPlace

NODES_NPU_NETWORK = "nodes_npu_network"

_SHOWN = 4

Ports = Mapping[str, Sequence[NodePort]]
"""Node -> the ports of its NPUs."""


def _look(system: System) -> Iterator[Finding]:
    answers = system.nodes.answers if system.nodes else {}
    places = {node: answer.super_pod for node, answer in answers.items() if answer.super_pod}
    found = [*_super_pods(places)]
    ports = {node: answer.ports for node, answer in answers.items() if answer.ports}
    if len(ports) > 1:
        found += [*_tls(ports), *_shared_addresses(ports), *_separate_subnets(ports)]
    yield from found
    if not found and len(ports) > 1:
        template = "{count} NPU ports of {nodes}: TLS the same, every address once, subnets connected"
        yield ok(NODES_NPU_NETWORK, say(template, count=sum(map(len, ports.values())), nodes=all_nodes(ports)))


def _super_pods(places: Mapping[str, SuperPodPlace]) -> Iterator[Finding]:
    """Hosts of one super pod communicate over HCCS, by the index of the host; others over their network ports."""
    by_place: dict[SuperPodPlace, list[str]] = {}
    by_pod: dict[int, list[str]] = {}
    for node, place in places.items():
        by_place.setdefault(place, []).append(node)
        by_pod.setdefault(place.pod, []).append(node)
    query = "`npu-smi info -t spod-info -i 0 -c 0`"
    for place, nodes in by_place.items():
        if len(nodes) > 1:
            yield failure(
                NODES_NPU_NETWORK,
                say(
                    "{nodes} have the server index {server} in super pod {pod}",
                    nodes=", ".join(nodes), server=place.server, pod=place.pod,
                ),
                expected=say("one index for each server of a super pod"),
                remedy=say("set the server id in the BMC of one of them, then look at {query}", query=query),
            )  # fmt: skip
    if len(by_pod) > 1:
        groups = (say("{nodes} in {pod}", nodes=", ".join(nodes), pod=pod) for pod, nodes in by_pod.items())
        yield warning(
            NODES_NPU_NETWORK,
            say("the nodes are in {count} super pods: {groups}", count=len(by_pod), groups=say("; ").join(groups)),
            expected=say("one super pod, whose NPUs HCCS connects; between super pods the network ports are used"),
            remedy=say(
                "choose nodes of one super pod; if they are in one, correct its id in the BMC ({query})", query=query
            ),
        )


def _tls(ports: Ports) -> Iterator[Finding]:
    on, off = ([_with_tls(node, ports[node], each) for node in ports] for each in (True, False))
    names_on, names_off = ([name for name in names if name] for names in (on, off))
    # A single node with both has the finding npu_network.
    if names_on and names_off and sum(bool(name or other) for name, other in zip(on, off, strict=True)) > 1:
        yield failure(
            NODES_NPU_NETWORK,
            say(
                "TLS of the NPUs' ports is on on {on}, off on {off}",
                on=", ".join(names_on),
                off=", ".join(names_off),
            ),
            expected=say("the same on every NPU of a job"),
            remedy=say("; ").join(
                say("on {node}: {command}", node=node, command=_tls_off(ports[node]))
                for node, name in zip(ports, on, strict=True)
                if name
            ),
        )


def _with_tls(node: str, ports: Sequence[NodePort], switch: bool) -> str:
    """The node if its ports have this switch, with the NPUs unless all have it; empty if none has."""
    having = [port for port in ports if port.tls is switch]
    if having and len(having) < sum(port.tls is not None for port in ports):
        return f"{node} (NPU {', '.join(str(port.device) for port in having)})"
    return node if having else ""


def _tls_off(ports: Sequence[NodePort]) -> str:
    ids = " ".join(str(port.device) for port in ports)
    return f"for i in {ids}; do sudo hccn_tool -i $i -tls -s enable 0; done"


def _shared_addresses(ports: Ports) -> Iterator[Finding]:
    places: dict[str, list[tuple[str, NodePort]]] = {}
    for node, each in ports.items():
        for port in each:
            if port.address:
                places.setdefault(port.address, []).append((node, port))
    shared = {address: at for address, at in places.items() if len({node for node, _ in at}) > 1}
    if shared:
        address, at = next(iter(shared.items()))
        node, port = at[-1]
        more = say(" (and {count} more)", count=len(shared) - 1) if len(shared) > 1 else ""
        yield failure(
            NODES_NPU_NETWORK,
            say("{npus} share the address {address}", npus=", ".join(map(_named, at)), address=address) + more,
            expected=say("one address for each NPU"),
            remedy=say(
                "on {node}: {command}",
                node=node,
                command=f"sudo hccn_tool -i {port.device} -ip -s address <ADDRESS> "
                f"netmask {port.netmask or '<NETMASK>'}",
            ),
            evidence=tuple(f"{address}: {', '.join(map(_named, at))}" for address, at in shared.items()),
        )


def _named(place: tuple[str, NodePort]) -> str:
    return say("NPU {npu} of {node}", npu=place[1].device, node=place[0])


def _separate_subnets(ports: Ports) -> Iterator[Finding]:
    """NPUs of one number communicate between nodes; in different subnets both need a gateway."""
    lost: dict[str, list[NodePort]] = {}
    for node, each in ports.items():
        for port in each:
            if port.has_gateway is False and port.interface and len(_subnets(ports, port.device)) > 1:
                lost.setdefault(node, []).append(port)
    if lost:
        devices = sorted({port.device for each in lost.values() for port in each})
        names = (
            say("NPU {npu} of {node}", npu=", ".join(str(port.device) for port in each), node=node)
            for node, each in lost.items()
        )
        node, each = next(iter(lost.items()))
        yield warning(
            NODES_NPU_NETWORK,
            say("no gateway: {npus}, and the other nodes are in other subnets", npus=say("; ").join(names)),
            expected=say("one subnet for the NPUs of one number, or a gateway on each"),
            remedy=say(
                "on {node}: {command}",
                node=node,
                command=f"sudo hccn_tool -i {each[0].device} -gateway -s gateway <GATEWAY>",
            ),
            evidence=tuple(
                f"NPU {device}: {', '.join(sorted(map(str, _subnets(ports, device))))}" for device in devices[:_SHOWN]
            ),
        )


def _subnets(ports: Ports, device: int) -> set[object]:
    interfaces = [port.interface for each in ports.values() for port in each if port.device == device]
    return {interface.network for interface in interfaces if interface}


NODES_NPU_NETWORK_CHECK = Check(
    NODES_NPU_NETWORK,
    what="Compares the network ports of the nodes' NPUs, as hccn_tool reports them: the TLS switch, addresses that two "
    "nodes have, and NPUs of one number that are in different subnets without a gateway; of A3 nodes also the super "
    "pod and the index in it, as npu-smi reports them.",
    why="Each node alone looks healthy. HCCL refuses ranks whose TLS switches differ (EI0014, from CANN 9.0 on EI0016; "
    "drivers before 25.2.0 end with a time-out, EI0006), and an address that two NPUs have connects to the wrong one. "
    "A subnet without a gateway does not matter between A3 nodes of one super pod, which use HCCS; there two nodes "
    "with one server index, as after a board was exchanged, do not connect.",
    fix="TLS: `hccn_tool -i N -tls -s enable 0` for every NPU of every node, as root on the hosts. Addresses: one for "
    "each NPU, in one subnet per number, or with `hccn_tool -i N -gateway -s gateway ADDRESS`.",
    look=_look,
)
