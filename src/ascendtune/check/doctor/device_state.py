"""State of the devices from npu-smi and NVML: number, health, and processes that use memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.container import CONTAINER, MOUNT_NPU_SMI
from ascendtune.check.doctor.language import counted, say
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding, ok, unknown, warning
from ascendtune.core.units import format_bytes
from ascendtune.machine.free_devices import IDLE_RATIO
from ascendtune.machine.inventory import Accelerator, Trouble
from ascendtune.machine.npu.key_values import read_facts
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.machine.visible import attached

NPU_SMI = "npu_smi"

_QUIET = ("not_supported", "unknown_question")
"""Errors that do not matter: the chip does not support a query."""
_BROKEN = ("npu_smi_hangs", "dcmi_not_initialized", "device_not_ready", "no_npu", "npu_smi_not_executable")
"""Errors of the machine itself. Other internal errors are usual in containers where the cards work."""


def _look_at_npu_smi(system: System) -> Iterator[Finding]:
    info, troubles, answers = system.npu_smi
    if info.devices:
        troubles = tuple(trouble for trouble in troubles if trouble.code not in _QUIET)
    if not system.has_npus and not info.devices and not troubles:
        return
    yield from (_trouble(trouble) for trouble in troubles)
    if not info.devices:
        if not troubles and not answers:
            yield _absent(system)
        return
    chips, nodes = len(info.devices), len(system.npu_nodes)
    if chips == nodes:
        if not troubles:
            yield ok(
                NPU_SMI,
                say(
                    "npu-smi {value} lists {count}, as /dev does",
                    value=info.npu_smi_version or "",
                    count=counted(chips, "chip"),
                ),
            )
    else:
        yield warning(
            NPU_SMI,
            say("npu-smi lists {count}, /dev has {nodes} of davinciN", count=counted(chips, "chip"), nodes=nodes),
            expected=say("the same number"),
            remedy=say(
                "in a container: map the cards that npu-smi shows; on the host: check the kernel log "
                "for a card that did not start"
            ),
        )


def _trouble(trouble: Trouble) -> Finding:
    return Finding(
        NPU_SMI,
        "failure" if trouble.code in _BROKEN else "warning",
        trouble.what,
        expected=say("a table of the cards"),
        remedy=trouble.remedy,
        evidence=(trouble.evidence,) if trouble.evidence else (),
    )


def _absent(system: System) -> Finding:
    mounts = f"{MOUNT_NPU_SMI} -v /usr/local/dcmi:/usr/local/dcmi"
    where = (
        say("start the container with {mounts}", mounts=mounts)
        if system.in_container
        else say("add its directory to PATH")
    )
    why = say("npu-smi was not found, so health, memory and processes are unknown; training does not need it")
    # A container's missing mounts are one finding, with one remedy.
    return unknown(NPU_SMI, why, remedy=where, because=CONTAINER if system.in_container else None)


NPU_SMI_CHECK = Check(
    NPU_SMI,
    what="Asks `npu-smi info`, five seconds at most, and compares its chips with the device files.",
    why="npu-smi hangs when a card or its driver hangs, and training then hangs at its first operator. An internal "
    "error alone does not mean that cards are broken: in containers with some of the cards, or without "
    "/usr/local/dcmi, npu-smi fails where torch_npu computes.",
    fix="Hanging: look at `dmesg`, end the processes that hold the card, restart. -8005: group HwHiAiUser, device "
    "files, and a restart after the driver was installed; in a container also a card that another container has. "
    "-8020: another container has the card. -9005 or missing libraries: mount /usr/local/dcmi and "
    "/usr/local/Ascend/driver/lib64.",
    look=_look_at_npu_smi,
    vital=True,
)


HEALTH = "health"


def _look_at_health(system: System) -> Iterator[Finding]:
    devices = system.npu_smi[0].devices
    if not devices:
        if system.has_npus:
            yield unknown(HEALTH, say("npu-smi lists no cards"), remedy=say("see the finding npu_smi"), because=NPU_SMI)
        return
    sick = [device for device in devices if (device.health or "").upper() != "OK"]
    yield from (_of_health(device, system) for device in sick)
    if sick:
        return
    chips = len(system.npu_nodes)
    # Without device files, as in a recorded answer, the number of devices in a table that was cut off is unknown.
    if len(devices) < chips or (not chips and any(each.code == "npu_smi_cut_off" for each in system.npu_smi[1])):
        why = say(
            "npu-smi reports OK for {count} {count:chip|chips}, and does not list all",
            count=len(devices),
        )
        yield unknown(HEALTH, why, remedy=say("see the finding npu_smi"), because=NPU_SMI)
    else:
        yield ok(HEALTH, say("{count} {count:chip reports|chips report} OK", count=len(devices)))


def _of_health(device: Accelerator, system: System) -> Finding:
    if device.health is None:
        return unknown(HEALTH, say("npu-smi does not report the health of {label}", label=device.label))
    facts = _details(device, system)
    evidence = tuple(f"{name}: {value}" for name, value in facts.items() if value is not None)
    if device.alarm_is_normal:
        return ok(
            HEALTH,
            say("{label} ({name}) reports Alarm, which is usual on such boards", label=device.label, name=device.name),
            evidence=evidence,
        )
    mild = device.health.lower() == "warning"
    code = facts.get("error_code")
    return Finding(
        HEALTH,
        "warning" if mild else "failure",
        say("{label} reports {health}", label=device.label, health=device.health)
        + (say(", error code {code}", code=code) if code else ""),
        expected="OK",
        remedy=_after_an_alarm(device, system),
        evidence=evidence,
    )


def _after_an_alarm(device: Accelerator, system: System) -> str:
    if not device.is_unhealthy:
        return say("train on, and watch it: npu-smi info -t health -i {npu}", npu=device.npu_id)
    look_up = say(
        "look up the code of `npu-smi info -t health -i {npu}` in the vendor's fault list and restart the machine; if "
        "the alarm returns, have the card replaced",
        npu=device.npu_id,
    )
    # Cards that the user has hidden may be another user's.
    visible = attached(vendor_of(device.kind), system.env, system.path("/dev"))
    ids = [str(each.logical_id) for each in system.npu_smi[0].devices if not each.is_unhealthy]
    well = [each for each in visible if each in ids]
    if not well:
        return look_up
    return (
        say("export ASCEND_RT_VISIBLE_DEVICES={ids} leaves out the cards with an alarm; then ", ids=",".join(well))
        + look_up
    )


def _details(device: Accelerator, system: System) -> dict[str, object]:
    chip = ["-c", str(device.chip_id)] if device.chip_id is not None else []
    blocks = read_facts(system.query_npu_smi("info", "-t", "health", "-i", str(device.npu_id), *chip))
    return {name: blocks[0].facts.get(name) for name in ("error_code", "error_information")} if blocks else {}


HEALTH_CHECK = Check(
    HEALTH,
    what="Reads each chip's health from npu-smi, and its error codes where it is not OK.",
    why="One faulty card stops the whole job: the others wait for it in a collective until the time-out, and the log "
    "then points to the network.",
    fix="Warning: you can train; watch the card's health. Alarm or Critical: exclude the card with "
    "ASCEND_RT_VISIBLE_DEVICES, note the error code and restart the machine; if the alarm returns, have the card "
    "replaced. On 310B developer boards Alarm is usual, and the check passes.",
    look=_look_at_health,
)


DEVICE_MEMORY = "device_memory"


def _look_at_device_memory(system: System) -> Iterator[Finding]:
    devices = [*system.npu_smi[0].devices, *system.gpus[0]]
    if not devices:
        if system.has_npus:
            yield _without_npu_smi(system)
        return
    # Desktop programs use a little memory of every GPU.
    in_use = [
        device
        for device in devices
        if device.processes and (_is_used(device) or not vendor_of(device.kind).lists_desktop_processes)
    ]
    silent = [device for device in devices if not device.processes and _is_used(device)]
    untold = [
        device
        for device in devices
        if device not in (*in_use, *silent) and (not device.processes_known or device.memory_used_bytes is None)
    ]
    if in_use:
        yield _in_use(in_use, system)
    if silent:
        yield _without_processes(silent, system)
    if untold:
        labels = ", ".join(device.label for device in untold)
        yield unknown(DEVICE_MEMORY, say("the processes or the used memory of {labels} are unknown", labels=labels))
    if not in_use and not silent and not untold:
        yield ok(DEVICE_MEMORY, say("no process holds memory on {count} {count:chip|chips}", count=len(devices)))


def _without_npu_smi(system: System) -> Finding:
    """Processes, from /proc, that have the device file of a card open."""
    holders = _holders(system)
    if not holders:
        why = say("npu-smi lists no cards; no process visible to this user has a card open")
        return unknown(DEVICE_MEMORY, why, remedy=say("see the finding npu_smi"), because=NPU_SMI)
    return warning(
        DEVICE_MEMORY,
        say("npu-smi lists no cards, but {count} {count:process has|processes have} a card open", count=len(holders)),
        expected=say("no process before training starts"),
        remedy=say("if they are left over from your jobs: kill {names}", names=" ".join(map(str, list(holders)[:8]))),
        evidence=tuple(_opened(holders)),
    )


def _holders(system: System) -> dict[int, tuple[str, str]]:
    """pid -> (name, device files), from /proc; only processes of this user, unless run by root."""
    found: dict[int, tuple[str, str]] = {}
    for pid, name, targets in system.open_files():
        nodes = {target.name for each in targets if (target := Path(each)).match("/dev/davinci[0-9]*")}
        if nodes and pid != os.getpid():
            found[pid] = (name or "a process", ", ".join(sorted(nodes)))
    return found


def _opened(holders: dict[int, tuple[str, str]]) -> list[str]:
    return [
        say("pid {pid} ({name}) has {nodes} open", pid=pid, name=name, nodes=nodes)
        for pid, (name, nodes) in list(holders.items())[:16]
    ]


def _is_used(device: Accelerator) -> bool:
    used, total = device.memory_used_bytes, device.memory_total_bytes
    return used is not None and bool(total) and used > IDLE_RATIO * (total or 0)


def _in_use(devices: list[Accelerator], system: System) -> Finding:
    lines = [
        f"{device.label}: {process.name or say('a process')}, pid {process.pid}, "
        f"{format_bytes(process.memory_used_bytes)}"
        for device in devices
        for process in device.processes
    ]
    processes = [process for device in devices for process in device.processes]
    # In a container the host's pid of a process is the pid of another one.
    has_host_pids = system.is_first_pid_namespace()
    pids = {each.pid if has_host_pids else each.container_pid for each in processes}
    labels = ", ".join(device.label for device in devices)
    return warning(
        DEVICE_MEMORY,
        say("processes hold memory on {labels}", labels=labels),
        expected=say("no process before training starts"),
        remedy=say(
            "wait for them or choose other cards (`ascendtune devices --free N`); their process ids are those of the "
            "host: end what is left over from your jobs there"
        )
        if None in pids
        else say(
            "wait for them or choose other cards (`ascendtune devices --free N`); if they are "
            "left over from your jobs: kill {names}",
            names=" ".join(map(str, sorted(filter(None, pids))[:8])),
        ),
        evidence=tuple(lines[:16]),
    )


def _without_processes(devices: list[Accelerator], system: System) -> Finding:
    lines = [
        say(
            "{label}: {used} of {total} used",
            label=each.label,
            used=format_bytes(each.memory_used_bytes),
            total=format_bytes(each.memory_total_bytes),
        )
        for each in devices
    ]
    lines += _opened(_holders(system))
    place = (
        say("on the host, outside this container") if system.in_container else say("as root, and in every container")
    )
    return warning(
        DEVICE_MEMORY,
        say(
            "memory of {names} is used, but no visible process holds it",
            names=", ".join(device.label for device in devices),
        ),
        expected=say("a few per cent, used by the driver itself"),
        remedy=say("look for the process {place} (`npu-smi info`); after a crash: ps -ef | grep python", place=place),
        evidence=tuple(lines),
    )


DEVICE_MEMORY_CHECK = Check(
    DEVICE_MEMORY,
    what="Lists processes that hold memory on the chips, and chips with used memory but no visible process. For such "
    "chips, and if npu-smi does not answer, it lists processes that have the card's device file open.",
    why="After Ctrl-C or a crash, workers of a job often keep running and hold the memory; the next job ends with an "
    "out-of-memory error although no job seems to run. In a container, processes outside of it are not listed: used "
    "memory is the only sign of them.",
    fix="Stop the processes with `kill`, then `kill -9`. If none is listed, check on the host. Choose free cards with "
    "`ascendtune devices --free N`.",
    look=_look_at_device_memory,
)
