"""The CPU: the device of machines without accelerators, shared by any number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ascendtune.machine.vendor.base import Peak, Planned, Vendor

if TYPE_CHECKING:
    from ascendtune.machine.inventory import Accelerator


class CpuVendor(Vendor):
    kind = "cpu"
    noun = "CPU process"
    plural = "CPU processes"
    is_accelerator = False
    planned = Planned("sdpa_fp32", spread=(0.95, 1.05), supports_fp16=False)

    def device_ids(self, dev: Path) -> tuple[str, ...]:
        return ()

    def visible(self, ids: Sequence[str], value: str) -> tuple[str, ...]:
        return tuple(ids)

    def why_unused(self) -> str | None:
        return None

    def near_cores(self, ids: Sequence[str], root: Path = Path("/")) -> list[set[int]]:
        return [set() for _ in ids]

    def link_peak(self, ids: Sequence[str]) -> Peak:
        return Peak(None, "links between processes of one host have no published speed")

    def label(self, device: Accelerator) -> str:
        return "the CPU"
