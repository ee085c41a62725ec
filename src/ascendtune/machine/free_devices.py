"""Free devices: without processes, and with almost no memory used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ascendtune.core.errors import MachineError
from ascendtune.core.units import format_bytes
from ascendtune.machine.inventory import Accelerator, DeviceProcess, visible_among
from ascendtune.machine.language import say
from ascendtune.machine.vendor.base import Vendor
from ascendtune.machine.vendor.find import ACCELERATORS, vendor_of

# Idle 910B cards show 2.6 to 4.2 GB of 32 or 64 GB (transcripts of drivers 23.0 to 26.1): the driver's own share. In a
# container, processes of others are not listed: only their memory indicates them.
IDLE_RATIO = 0.15


def pick_free(devices: Sequence[Accelerator], count: int, env: Mapping[str, str]) -> tuple[Accelerator, ...]:
    """`count` devices without processes and with almost no used memory, in the order of their logical ids.

    NPUs are considered before GPUs, and only those that the kind's visibility variable in `env` selects.

    Raises:
        MachineError: there are not enough; the message lists the processes on the others.
    """
    kinds = [vendor.kind for vendor in ACCELERATORS if any(device.kind == vendor.kind for device in devices)]
    if not kinds:
        raise MachineError(
            say("no accelerator is visible"),
            code="no-accelerator",
            remedy=say("`ascendtune doctor accelerators` says why"),
        )
    visible = _visible([device for device in devices if device.kind == kinds[0]], vendor_of(kinds[0]), env)
    looked_at = [(device, why_not_free(device)) for device in visible]
    free = [device for device, reason in looked_at if reason is None]
    if len(free) < count:
        raise _too_few(count, len(free), looked_at)
    free.sort(key=_rank)
    return tuple(sorted(free[:count], key=lambda device: device.logical_id or 0))


def _rank(device: Accelerator) -> tuple[int, float, int]:
    """Less memory first. Differences below a twentieth are the driver's: adjacent devices then matter more."""
    used, total = device.memory_used_bytes or 0, device.memory_total_bytes or 1
    return 20 * used // total, device.utilization_ratio or 0, device.logical_id or 0


def _visible(devices: Sequence[Accelerator], vendor: Vendor, env: Mapping[str, str]) -> Sequence[Accelerator]:
    """Devices of one kind that the kind's visibility variable selects.

    Raises:
        MachineError: it selects none.
    """
    value = env.get(vendor.visible_variable)
    if value is None:
        return devices
    found = visible_among(devices, vendor, value)
    if not found:
        raise MachineError(
            say("{name}={value} leaves no {noun}", name=vendor.visible_variable, value=value, noun=vendor.noun),
            code="no-accelerator",
            remedy=say("unset {name}, or name in it what `ascendtune devices` lists", name=vendor.visible_variable),
        )
    return found


def why_not_free(device: Accelerator) -> str | None:
    """The reason why a device is not free, or None if it is free."""
    if device.logical_id is None:
        return say("its logical id is unknown, npu-smi's answer has gaps")
    if device.is_unhealthy:
        return say("its health is {health}", health=device.health)
    if device.processes:
        return say("in use by {holders}", holders=", ".join(map(_holder, device.processes)))
    if not device.processes_known:
        return say("its processes are unknown, npu-smi's answer is cut off")
    used, total = device.memory_used_bytes, device.memory_total_bytes
    if used is None or not total:
        return say("its used memory is unknown")
    if used > IDLE_RATIO * total:
        return say(
            "{used} of {total} are used by processes that are not visible here",
            used=format_bytes(used),
            total=format_bytes(total),
        )
    return None


def _holder(process: DeviceProcess) -> str:
    used = "" if process.memory_used_bytes is None else f", {format_bytes(process.memory_used_bytes)}"
    user = "" if process.user is None else f", {process.user}"
    return f"{process.name or 'a process'} (pid {process.pid}{user}{used})"


def _too_few(count: int, free: int, looked_at: Sequence[tuple[Accelerator, str | None]]) -> MachineError:
    reasons = [f"{device.label}: {reason}" for device, reason in looked_at if reason]
    request = say(
        "{count} free {count:device|devices} requested, {free} of {total} free",
        count=count,
        free=free,
        total=len(looked_at),
    )
    return MachineError(
        "\n       ".join([request, *reasons]),
        code="too-few-devices",
        remedy=say("request fewer devices, wait, or stop these processes"),
    )
