"""The devices of the machine, as the vendors' tools report them. A value that is not reported is None, not a guess."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ascendtune.machine.vendor.find import vendor_of

_ALARM_IS_NORMAL = ("310B",)
"""Developer boards report Alarm for components that the board lacks (transcripts of 310B1 and 310B4)."""
_WELL = ("ok", "warning")


@dataclass(frozen=True)
class DeviceProcess:
    """A process that holds memory on a device.

    `pid` is the host's; `container_pid` is the same process as its container numbers it, where the vendor tells both.
    """

    pid: int
    container_pid: int | None = None
    name: str | None = None
    memory_used_bytes: int | None = None


@dataclass(frozen=True)
class Accelerator:
    """One chip (an A3 card has two). The order of the fields is the order of the JSON."""

    kind: Literal["npu", "cuda"]
    npu_id: int | None = None
    """The card, as npu-smi numbers it; not consecutive on inference servers."""
    chip_id: int | None = None
    phy_id: int | None = None
    """Physical id; for CUDA the index that NVML counts by."""
    name: str | None = None
    health: str | None = None
    """The vendor's word: OK, Warning, Alarm, Critical."""
    bus_id: str | None = None
    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    """High-bandwidth memory where the chip has it, else DDR."""
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: int | None = None
    hugepages_used: int | None = None
    hugepages_total: int | None = None
    processes: tuple[DeviceProcess, ...] = ()
    processes_known: bool = field(default=True, compare=False)
    """False where the tool's list of processes was cut off; not part of the JSON."""
    logical_id: int | None = field(default=None, compare=False)
    """What the kind's visibility variable takes; not part of the JSON."""

    def as_json(self) -> dict[str, Any]:
        content = asdict(self)
        del content["logical_id"], content["processes_known"]
        return {**content, "processes": list(content["processes"])}

    @property
    def alarm_is_normal(self) -> bool:
        """Whether it reports an alarm that is usual on its board."""
        return self.health == "Alarm" and (self.name or "").startswith(_ALARM_IS_NORMAL)

    @property
    def is_sick(self) -> bool:
        """Whether it reports an alarm, or what is no word for being well, so that no job should count on it."""
        return self.health is not None and self.health.lower() not in _WELL and not self.alarm_is_normal

    @property
    def label(self) -> str:
        """How messages call it: "NPU 4", "NPU 4 chip 1", "GPU 0"."""
        return vendor_of(self.kind).label(self)


@dataclass(frozen=True)
class Trouble:
    """An error of a vendor's tool in plain words, with a remedy."""

    code: str
    what: str
    remedy: str
    evidence: str = ""
    """The line with the message."""
    blinding: bool = False
    """No fact about the devices is known."""
