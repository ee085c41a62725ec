"""A snapshot of the machine: devices, host and versions."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ascendtune.machine.cuda import gpus
from ascendtune.machine.host import HostInfo, inspect_host
from ascendtune.machine.inventory import Accelerator, Trouble
from ascendtune.machine.npu.smi import NpuSmi
from ascendtune.machine.npu.versions import Versions, installed_versions


@dataclass(frozen=True)
class Snapshot:
    """`driver_version` is that of the NPUs, else that of the GPUs. `troubles` explain missing values."""

    npu_smi_version: str | None
    driver_version: str | None
    devices: tuple[Accelerator, ...]
    host: HostInfo
    versions: Versions
    troubles: tuple[Trouble, ...]

    @property
    def is_blind(self) -> bool:
        """Whether devices should be present, and nothing is known about them."""
        return not self.devices and any(trouble.blinding for trouble in self.troubles)

    def as_json(self) -> dict[str, Any]:
        """The form of `ascendtune devices --json`: units in the names, ratios 0 to 1, None for values that no vendor
        reports."""
        return {
            "npu_smi_version": self.npu_smi_version,
            "driver_version": self.driver_version,
            "devices": [device.as_json() for device in self.devices],
            "troubles": [asdict(trouble) for trouble in self.troubles],
            "host": {**asdict(self.host), "ascend": asdict(self.versions)},
        }


def take_snapshot() -> Snapshot:
    """Query every vendor's tool, each within its time limit. Never raises for their output."""
    smi = NpuSmi()
    info = smi.info()
    cuda_devices, cuda_driver, cuda_troubles = gpus()
    versions = installed_versions()
    return Snapshot(
        npu_smi_version=info.npu_smi_version,
        driver_version=info.driver_version or versions.driver_version or cuda_driver,
        devices=tuple(
            replace(device, processes=tuple(each.described() for each in device.processes))
            for device in info.devices + cuda_devices
        ),
        host=inspect_host(),
        versions=versions,
        troubles=(*smi.troubles, *cuda_troubles),
    )
