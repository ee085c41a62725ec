"""Whether this process may run near its devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok, unknown
from ascendtune.machine.host import numa_nodes
from ascendtune.machine.inventory import Accelerator
from ascendtune.machine.npu.topology import cores_of
from ascendtune.machine.visible import VARIABLES, Kind

CODE = "numa"


def _look(outside: Outside) -> Iterator[Finding]:
    nodes = {int(node): cores_of(cores) for node, cores in numa_nodes(outside.root).items()}
    devices = [*_chosen(outside, "npu", outside.npu_smi[0].devices), *_chosen(outside, "cuda", outside.gpus[0])]
    if len(nodes) < 2 or not (devices or outside.has_npus):
        return
    homes = {device.label: _home(outside, device.bus_id) for device in devices}
    known = {label: home for label, home in homes.items() if home in nodes}
    if not known:
        yield unknown(CODE, "no tool and no kernel file says on which NUMA node a device is")
        return
    allowed = cores_of(_status(outside, "Cpus_allowed_list"))
    if not allowed:
        yield unknown(CODE, "/proc/self/status does not say on which cores this process may run")
        return
    near = {node for node, cores in nodes.items() if cores & allowed}
    far = [label for label, home in known.items() if home not in near]
    if far:
        yield _far(outside, far, {label: known[label] for label in far}, near)
    else:
        places = ", ".join(map(str, sorted(set(known.values()))))
        yield ok(CODE, f"devices on NUMA node {places}; this process may run on cores of each")


def _chosen(outside: Outside, kind: Kind, devices: Sequence[Accelerator]) -> Sequence[Accelerator]:
    """Those that the kind's variable names; all where it is not set, or not by plain numbers."""
    names = outside.env.get(VARIABLES[kind], "").split(",")
    if not all(name.isdecimal() and int(name) < len(devices) for name in names):
        return devices
    return [devices[int(name)] for name in names]


def _far(outside: Outside, far: list[str], homes: dict[str, int], near: set[int]) -> Finding:
    wanted = ",".join(map(str, sorted(set(homes.values()))))
    how = "--cpuset-cpus of the container's start" if outside.in_container else "taskset, numactl or the cgroup"
    return Finding(
        CODE,
        "warning",
        f"this process may use no core of the NUMA node of {', '.join(far[:8])}",
        expected=f"cores of node {wanted}",
        remedy=f"widen what {how} allows by the cores of node {wanted}; or use the devices that are near",
        evidence=(
            f"Cpus_allowed_list: {_status(outside, 'Cpus_allowed_list')}, on node {', '.join(map(str, sorted(near)))}",
            *(f"{label}: node {home}" for label, home in homes.items()),
        ),
    )


def _home(outside: Outside, bus_id: str | None) -> int:
    """-1 where the kernel does not know, as it says itself."""
    # NVIDIA writes the domain with eight digits, the kernel with four.
    place = re.search(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$", (bus_id or "").lower())
    said = outside.text(f"/sys/bus/pci/devices/{place[0]}/numa_node").strip() if place else ""
    return int(said) if said.isdecimal() else -1


def _status(outside: Outside, name: str) -> str:
    found = re.search(rf"^{name}:\s*(\S+)", outside.text("/proc/self/status"), re.MULTILINE)
    return found[1] if found else ""


CHECK = Check(
    CODE,
    what="On a machine with several NUMA nodes: compares the node of each visible device with the cores that this "
    "process may run on.",
    why="Operators are sent, and batches copied, by the CPU. From the other socket both go through the link between "
    "the sockets; a container that was given the cores of one node and the cards of another loses speed on every step, "
    "and nothing says so.",
    fix="Give the container cores of the devices' nodes (--cpuset-cpus), or none of the restrictions. `ascendtune "
    "devices --topology` shows which device is on which node.",
    look=_look,
)
