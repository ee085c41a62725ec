"""The devices of the machine, as the vendors' tools report them. A value that is not reported is None, not a guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ascendtune.core.procfs import command_of, is_first_pid_namespace, owner_of, stat_of, user_name
from ascendtune.machine.vendor.base import Vendor
from ascendtune.machine.vendor.find import vendor_of

_ALARM_IS_NORMAL = ("310B",)
"""Developer boards report Alarm for components that the board lacks (transcripts of 310B1 and 310B4)."""
_WELL = ("ok", "warning")


@dataclass(frozen=True)
class DeviceProcess:
    """A process that uses memory on a device.

    `pid` is the host's; `container_pid` is the pid in its container, if the vendor reports both.
    """

    pid: int
    container_pid: int | None = None
    name: str | None = None
    memory_used_bytes: int | None = None
    user: str | None = None
    """This and the following fields are from /proc; None if it does not show the process."""
    age_seconds: float | None = None
    command: str | None = None

    def described(self) -> DeviceProcess:
        """The process with its user, age and command, if it is visible here."""
        if self.container_pid is None and not is_first_pid_namespace():
            # In this container the pid belongs to another process.
            return self
        pid = local_pid(self)
        stat = stat_of(pid)
        if stat is None:
            return self
        return replace(self, user=user_name(owner_of(pid)), age_seconds=stat.age_seconds, command=command_of(pid))


def local_pid(process: DeviceProcess) -> int:
    """The pid in this namespace: the vendor's tool may list the host's and the container's."""
    if process.container_pid is None or is_first_pid_namespace():
        return process.pid
    return process.container_pid


@dataclass(frozen=True)
class Accelerator:
    """One chip (an A3 card has two). The order of the fields is the order of the JSON."""

    kind: Literal["npu", "cuda"]
    npu_id: int | None = None
    """The card's number in npu-smi; not consecutive on inference servers."""
    chip_id: int | None = None
    phy_id: int | None = None
    """Physical id; for CUDA the index that NVML counts by."""
    name: str | None = None
    health: str | None = None
    """The vendor's term: OK, Warning, Alarm, Critical."""
    bus_id: str | None = None
    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    """High-bandwidth memory if the chip has it, else DDR."""
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: int | None = None
    hugepages_used: int | None = None
    hugepages_total: int | None = None
    processes: tuple[DeviceProcess, ...] = ()
    processes_known: bool = field(default=True, compare=False)
    """False if the tool's list of processes was cut off; not part of the JSON."""
    logical_id: int | None = field(default=None, compare=False)
    """Its value in the kind's visibility variable; not part of the JSON."""
    uuid: str | None = field(default=None, compare=False)
    """The vendor's unique name, if the variable accepts it, too: GPU-8f1a…; not part of the JSON."""

    def as_json(self) -> dict[str, Any]:
        content = asdict(self)
        del content["logical_id"], content["processes_known"], content["uuid"]
        return {**content, "processes": list(content["processes"])}

    def is_named(self, name: str) -> bool:
        """Whether `name`, a value of the kind's visibility variable, may mean it, for example as a prefix of its
        uuid."""
        return name == str(self.logical_id) or (self.uuid is not None and bool(name) and self.uuid.startswith(name))

    @property
    def alarm_is_normal(self) -> bool:
        """Whether it reports an alarm that is usual on its board."""
        return self.health == "Alarm" and (self.name or "").startswith(_ALARM_IS_NORMAL)

    @property
    def is_unhealthy(self) -> bool:
        """Whether it reports an alarm, or any other state than a healthy one, so that no job should use it."""
        return self.health is not None and self.health.lower() not in _WELL and not self.alarm_is_normal

    @property
    def label(self) -> str:
        """Its name in messages: "NPU 4", "NPU 4 chip 1", "GPU 0"."""
        return vendor_of(self.kind).label(self)


def visible_among(devices: Sequence[Accelerator], vendor: Vendor, value: str) -> list[Accelerator]:
    """The devices among `devices`, all of one vendor, that a process sees whose visibility variable is `value`."""
    found: list[Accelerator] = []
    # A device that the vendor's tool does not list, or without an id, still has its number.
    count = max((len(devices), *(1 + (device.logical_id or 0) for device in devices)))
    for name in vendor.visible([str(number) for number in range(count)], value):
        matching = [device for device in devices if device.is_named(name)]
        if len(matching) == 1:
            found += matching
        elif not name.isdecimal():
            break  # like the runtime at a unique name that means no device, or several
    # If two unique names mean one device, no device is visible.
    return found if len({id(device) for device in found}) == len(found) else []


@dataclass(frozen=True)
class Trouble:
    """An error of a vendor's tool in plain words, with a remedy."""

    code: str
    what: str
    remedy: str
    evidence: str = ""
    """The line with the message."""
    blinding: bool = False
    """Whether nothing is known about the devices."""
