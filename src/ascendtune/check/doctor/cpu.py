"""Whether the cores run at full clock, and near the devices."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding, ok, unknown, warning
from ascendtune.machine.host import numa_nodes
from ascendtune.machine.inventory import Accelerator, visible_among
from ascendtune.machine.npu.topology import cores_of
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.machine.visible import Kind

CPU_GOVERNOR = "cpu_governor"


def _look_at_cpu_governor(system: System) -> Iterator[Finding]:
    if not system.npu_nodes and not system.gpus[0]:
        return
    governors = Counter(
        system.text(f"/sys/devices/system/cpu/{cpu.name}/cpufreq/scaling_governor").strip()
        for cpu in system.path("/sys/devices/system/cpu").glob("cpu[0-9]*")
    )
    del governors[""]
    if not governors:
        return
    slow = sum(count for name, count in governors.items() if name in ("powersave", "conservative"))
    # intel_pstate and amd-pstate call their ordinary governor powersave.
    scales_itself = "pstate" in system.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver")
    measured = ", ".join(
        say("{name} on {count} {count:core|cores}", name=name, count=each) for name, each in sorted(governors.items())
    )
    if slow and not scales_itself:
        yield warning(
            CPU_GOVERNOR,
            say("{slow} of {values} cores save power", slow=slow, values=sum(governors.values())),
            expected="performance",
            remedy=say("sudo cpupower frequency-set -g performance"),
            evidence=(measured,),
        )
    else:
        yield ok(CPU_GOVERNOR, measured)


CPU_GOVERNOR_CHECK = Check(
    CPU_GOVERNOR,
    what="Reads the frequency governor of every core.",
    why="The CPU submits operators to the NPU. At a low clock, a small model is limited by the host, and the cards "
    "idle.",
    fix="sudo cpupower frequency-set -g performance; permanently in the BIOS or with tuned.",
    look=_look_at_cpu_governor,
)


NUMA = "numa"


def _look_at_numa(system: System) -> Iterator[Finding]:
    nodes = {int(node): cores_of(cores) for node, cores in numa_nodes(system.root).items()}
    devices = [*_chosen(system, "npu", system.npu_smi[0].devices), *_chosen(system, "cuda", system.gpus[0])]
    if len(nodes) < 2 or not (devices or system.has_npus):
        return
    homes = {device.label: _home(system, device.bus_id) for device in devices}
    known = {label: home for label, home in homes.items() if home in nodes}
    if not known:
        because = None if devices else "npu_smi"
        yield unknown(NUMA, say("the NUMA nodes of the devices are unknown"), because=because)
        return
    allowed = cores_of(_allowed_cores(system))
    if not allowed:
        yield unknown(NUMA, say("the cores of this process are unknown: /proc/self/status does not list them"))
        return
    near = {node for node, cores in nodes.items() if cores & allowed}
    far = [label for label, home in known.items() if home not in near]
    if far:
        yield _far(system, far, {label: known[label] for label in far}, near)
    else:
        places = ", ".join(map(str, sorted(set(known.values()))))
        yield ok(NUMA, say("devices on NUMA node {places}; this process may run on cores of each", places=places))


def _chosen(system: System, kind: Kind, devices: Sequence[Accelerator]) -> Sequence[Accelerator]:
    """The devices that the kind's variable selects; all if it is not set, or selects none."""
    vendor = vendor_of(kind)
    value = system.env.get(vendor.visible_variable)
    return devices if value is None else visible_among(devices, vendor, value) or devices


def _far(system: System, far: list[str], homes: dict[str, int], near: set[int]) -> Finding:
    wanted = ",".join(map(str, sorted(set(homes.values()))))
    how = (
        say("--cpuset-cpus of the container's start") if system.in_container else say("taskset, numactl or the cgroup")
    )
    return warning(
        NUMA,
        say("this process may use no core of the NUMA node of {names}", names=", ".join(far[:8])),
        expected=say("cores of node {wanted}", wanted=wanted),
        remedy=say(
            "add the cores of node {wanted} with {how}, or use devices of the allowed node", wanted=wanted, how=how
        ),
        evidence=(
            f"Cpus_allowed_list: {_allowed_cores(system)}, on node {', '.join(map(str, sorted(near)))}",
            *(f"{label}: node {home}" for label, home in homes.items()),
        ),
    )


def _home(system: System, bus_id: str | None) -> int:
    """The NUMA node of a device; -1 if unknown, as in the kernel's file."""
    # NVIDIA writes the domain with eight digits, the kernel with four.
    place = re.search(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$", (bus_id or "").lower())
    node = system.text(f"/sys/bus/pci/devices/{place[0]}/numa_node").strip() if place else ""
    return int(node) if node.isdecimal() else -1


def _allowed_cores(system: System) -> str:
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)", system.text("/proc/self/status"), re.MULTILINE)
    return found[1] if found else ""


NUMA_CHECK = Check(
    NUMA,
    what="On a machine with several NUMA nodes: compares the node of each visible device with the cores that this "
    "process may run on.",
    why="The CPU submits operators and copies batches. From the other socket, both use the link between the sockets; a "
    "container with the cores of one node and the cards of another is slower in every step, without a message.",
    fix="Give the container cores of the devices' nodes (--cpuset-cpus), or do not restrict its cores. `ascendtune "
    "devices --topology` shows which device is on which node.",
    look=_look_at_numa,
)
