"""`ascendtune devices`"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.job_display import process_table
from ascendtune.cli.messages import warn
from ascendtune.cli.options import LanguageOption
from ascendtune.cli.terminal import colour, in_language, print_json, table, width
from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.terminal_text import control, wrap_words
from ascendtune.core.units import format_bytes, format_duration
from ascendtune.machine.language import say
from ascendtune.machine.npu.topology import LINKS, Topology, cores_of

if TYPE_CHECKING:
    from ascendtune.machine.host import HostInfo
    from ascendtune.machine.inventory import Accelerator, DeviceProcess
    from ascendtune.machine.snapshot import Snapshot


def devices(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document; with --watch one line each.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Between updates with --watch.", min=0.5)] = 2.0,
    free: Annotated[
        int | None,
        typer.Option(help="Print the ids of N free devices, for ASCEND_RT_VISIBLE_DEVICES.", min=1),
    ] = None,
    topology: Annotated[bool, typer.Option("--topology", help="Print the links between devices.")] = False,
    lang: LanguageOption = None,
) -> int:
    """Show the accelerators and the host. Needs no torch.

    \b
    ascendtune devices
    ascendtune devices --json
    export ASCEND_RT_VISIBLE_DEVICES=$(ascendtune devices --free 4)

    Exit code 3: the vendor's tool failed, or fewer than N devices are free.
    """
    if sum((free is not None, topology, watch)) > 1 or (as_json and (free is not None or topology)):
        raise InputError(
            "--free, --topology and --watch exclude each other; --json is for the list, once or with --watch",
            code="conflicting-options",
            remedy="keep one of them",
        )
    with in_language(lang, as_json=as_json):
        if topology:
            return _show_topology()
        if watch:
            return _watch(interval, as_json)
        snapshot = _look()
        if free is not None:
            _print_free(snapshot, free)
            return 0
        _print_snapshot(snapshot, as_json)
        return 3 if snapshot.is_blind else 0


def _look() -> Snapshot:
    """Take a snapshot; its errors are printed on stderr."""
    from ascendtune.machine.snapshot import take_snapshot

    snapshot = take_snapshot()
    for trouble in snapshot.troubles:
        warn(say("{what}\n     do: {remedy}", what=trouble.what, remedy=trouble.remedy))
    return snapshot


def _print_snapshot(snapshot: Snapshot, as_json: bool) -> None:
    if as_json:
        print_json(snapshot.as_json())
    else:
        print(picture(snapshot), flush=True)


def _watch(interval: float, as_json: bool) -> int:
    """Print snapshots, each with its time: in place on a terminal, with --json one line each."""
    from ascendtune.machine.snapshot import take_snapshot

    clears = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    snapshot = _look()
    while True:
        if as_json:
            print_json({"time": time.time(), **snapshot.as_json()}, indent=None)
        else:
            begin = control("[H", sys.stdout) + control("[2J", sys.stdout) if clears else ""
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            print(begin + say("{now}, every {seconds:g} s until Ctrl-C", now=now, seconds=interval))
            print(picture(snapshot) + ("" if clears else "\n"), flush=True)
        time.sleep(interval)
        snapshot = take_snapshot()


def _print_free(snapshot: Snapshot, count: int) -> None:
    from ascendtune.machine.free_devices import pick_free
    from ascendtune.machine.vendor.find import vendor_of

    if snapshot.is_blind:
        raise MachineError(
            _nothing(snapshot),
            code="accelerators-unknown",
            remedy=say("do what the warning above says, then try again"),
        )
    picked = pick_free(snapshot.devices, count, os.environ)
    kind = picked[0].kind
    if len({device.name for device in snapshot.devices if device.kind == kind}) > 1:
        for name, value in vendor_of(kind).numbering.items():
            if os.environ.get(name) != value:
                warn(
                    say(
                        "the devices are of several types: the ids are valid with {name}={value} only",
                        name=name,
                        value=value,
                    )
                )
    print(",".join(str(device.logical_id) for device in picked))


def _show_topology() -> int:
    from ascendtune.machine.host import numa_nodes
    from ascendtune.machine.npu.smi import NpuSmi

    smi = NpuSmi()
    topology = smi.topology()
    for trouble in smi.troubles:
        warn(say("{what}\n     do: {remedy}", what=trouble.what, remedy=trouble.remedy))
    if topology is None:
        print(
            say("no topology: npu-smi does not report it")
            if smi.is_available
            else say("no topology: npu-smi was not found or does not answer")
        )
        return 3 if smi.troubles else 0
    print(topology_picture(topology, numa_nodes()))
    return 0


_COLUMNS: dict[str, Callable[[Accelerator], str]] = {
    "name": lambda device: device.name or "-",
    "id": lambda device: _number(device.logical_id),
    "npu": lambda device: _number(device.npu_id) + ("" if device.chip_id is None else f".{device.chip_id}"),
    "health": lambda device: device.health or "-",
    "load": lambda device: "-" if device.utilization_ratio is None else f"{device.utilization_ratio:.0%}",
    "memory": lambda device: _memory(device.memory_used_bytes, device.memory_total_bytes),
    "power": lambda device: "-" if device.power_watts is None else f"{device.power_watts:.0f} W",
    "temp": lambda device: "-" if device.temperature_celsius is None else f"{device.temperature_celsius} C",
    "bus": lambda device: device.bus_id or "-",
    "huge pages": lambda device: _format_share(device.hugepages_used, device.hugepages_total),
}
_RIGHT = ("id", "load", "memory", "power", "temp", "huge pages")
_SPARE = ("huge pages", "bus", "npu", "temp", "power")
"""Columns that a narrow terminal omits, in this order; --json has all."""


def picture(snapshot: Snapshot) -> str:
    """Versions, one line per device, the processes on them, one line for the host."""
    return "\n".join(
        [
            *_versions(snapshot),
            _devices(snapshot.devices) if snapshot.devices else _nothing(snapshot),
            *_processes(snapshot.devices),
            *_wrapped(_host(snapshot.host)),
        ]
    )


def _versions(snapshot: Snapshot) -> list[str]:
    cann = ", ".join(kit.version or kit.package_version or "?" for kit in snapshot.versions.toolkits)
    known = {
        "npu-smi": snapshot.npu_smi_version,
        say("driver"): snapshot.driver_version,
        say("firmware"): snapshot.versions.firmware_version,
        "CANN": cann or None,
    }
    line = ", ".join(f"{name} {version}" for name, version in known.items() if version)
    return _wrapped(line) if line else []


def _devices(devices: tuple[Accelerator, ...]) -> str:
    hidden = {name for name in _COLUMNS if all(_COLUMNS[name](device) == "-" for device in devices)}
    if not any(device.chip_id for device in devices) and all(device.npu_id == device.logical_id for device in devices):
        hidden.add("npu")
    if all(not device.hugepages_total for device in devices):
        hidden.add("huge pages")
    shown = [name for name in _COLUMNS if name not in hidden]
    rows = [[_COLUMNS[name](device) for name in shown] for device in devices]
    heads, right, spare = ([say(name) for name in names] for names in (shown, _RIGHT, _SPARE))
    lines = table(heads, rows, right=right, spare=spare).splitlines()
    return "\n".join([colour(lines[0], "bold", sys.stdout), *map(_painted, lines[1:], devices)])


def _nothing(snapshot: Snapshot) -> str:
    if snapshot.is_blind:
        return say("accelerators: unknown, the tool that lists them failed")
    return say("no accelerator found; `ascendtune doctor accelerators` says why")


def _painted(line: str, device: Accelerator) -> str:
    match (device.health or "").lower():
        case "alarm" | "critical":
            return colour(line, "red", sys.stdout)
        case "warning":
            return colour(line, "yellow", sys.stdout)
    return line


def _processes(devices: tuple[Accelerator, ...]) -> list[str]:
    """A table of the processes on the devices, below an empty line."""
    processes = [(device, process) for device in devices for process in device.processes]
    if not processes:
        return []
    header = [say(name) for name in ("device", "pid", "user", "memory", "age")]
    rows = [[device.label, *_process(process)] for device, process in processes]
    commands = [process.command or process.name or "-" for _, process in processes]
    return ["", process_table(header, rows, commands, right=[*header[1:2], *header[3:]], title=say("command")), ""]


def _process(process: DeviceProcess) -> list[str]:
    inside = say(" ({pid} in its container)", pid=process.container_pid) if process.container_pid else ""
    age = "-" if process.age_seconds is None else format_duration(process.age_seconds)
    return [f"{process.pid}{inside}", process.user or "-", format_bytes(process.memory_used_bytes), age]


def _host(host: HostInfo) -> str:
    usable = say(", {count} usable", count=host.cores_usable) if host.cores_usable != host.cores else ""
    memory = say(
        "{free} of {total} free",
        free=format_bytes(host.memory_available_bytes),
        total=format_bytes(host.memory_total_bytes),
    )
    cores = host.cores or host.cores_usable
    shown = [
        host.hostname,
        host.cpu_name,
        say("{count} {count:core|cores}", count=cores) + f"{usable} ({host.architecture})",
        None if host.load_average is None else say("load {load:.1f}", load=host.load_average),
        memory,
        say("{count} NUMA nodes", count=len(host.numa_nodes)) if len(host.numa_nodes) > 1 else None,
        host.operating_system,
    ]
    return say("host: ") + ", ".join(part for part in shown if part)


def _wrapped(text: str) -> list[str]:
    limit = width(sys.stdout)
    return wrap_words(text, limit, rest="  ") if limit else [text]


def _memory(used: int | None, total: int | None) -> str:
    return "-" if total is None else f"{format_bytes(used)} / {format_bytes(total)}"


def _format_share(used: int | None, total: int | None) -> str:
    return "-" if total is None else f"{_number(used)} / {total}"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def topology_picture(topology: Topology, numa_nodes: Mapping[str, str]) -> str:
    """The matrix of links, the cores and NUMA nodes near each NPU, and the legend of the links.

    Args:
        numa_nodes: node -> its cores, from the host.
    """
    rows = [
        [f"NPU{npu}", *("X" if npu == other else topology.links.get((npu, other), "-") for other in topology.npus)]
        for npu in topology.npus
    ]
    matrix = table(["", *(f"NPU{npu}" for npu in topology.npus)], rows)
    near = [f"NPU{npu}: {_near(topology.cores[npu], numa_nodes)}" for npu in topology.npus if npu in topology.cores]
    used = set(topology.links.values())
    meanings = [
        f"{link}: {say(LINKS.get(link, 'a link that npu-smi does not explain'))}"
        for link in sorted(used, key=_distance)
    ]
    return "\n".join([matrix, "", *near, "", *meanings])


def _near(cores: str, numa_nodes: Mapping[str, str]) -> str:
    near = cores_of(cores)
    nodes = [node for node, its_cores in numa_nodes.items() if near & cores_of(its_cores)]
    return say("cores {cores}", cores=cores) + (say(", NUMA node {nodes}", nodes=", ".join(nodes)) if nodes else "")


def _distance(link: str) -> int:
    names = list(LINKS)
    return names.index(link) if link in names else len(names)
