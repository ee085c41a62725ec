"""Which devices a new process could use, told without importing torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ascendtune.machine.vendor.base import Vendor
from ascendtune.machine.vendor.find import ACCELERATORS, CPU, vendor_of

Kind = Literal["cpu", "cuda", "npu"]


@dataclass(frozen=True)
class Visible:
    """The devices of one kind, by the names that the kind's visibility variable takes: "0", "1", "GPU-8f1…"."""

    kind: Kind
    ids: tuple[str, ...]
    note: str | None = None
    """Why devices that are in the machine are not among them."""

    @property
    def vendor(self) -> Vendor:
        return vendor_of(self.kind)

    def label(self, index: int) -> str:
        """How messages call one of them: "NPU 3"."""
        return f"{self.vendor.noun} {self.ids[index]}" if self.vendor.is_accelerator else "the CPU"


def visible_devices(env: Mapping[str, str] | None = None, dev: Path = Path("/dev")) -> Visible:
    """NPUs, else GPUs, else the CPU; only those that the installed torch can compute on.

    Args:
        env: the environment to look at (default: this process's).
        dev: where device files are.
    """
    notes = []
    for vendor in ACCELERATORS:
        if ids := attached(vendor, env, dev):
            why_unused = vendor.why_unused()
            if why_unused is None:
                return Visible(vendor.kind, ids)
            notes.append(f"{len(ids)} {vendor.noun} here are not used: {why_unused}")
    return Visible(CPU.kind, ("0",), notes[0] if notes else None)


def attached(vendor: Vendor, env: Mapping[str, str] | None = None, dev: Path = Path("/dev")) -> tuple[str, ...]:
    """The accelerators of `vendor` that are here and visible, whether or not the installed torch can use them."""
    env = os.environ if env is None else env
    ids, value = vendor.device_ids(dev), env.get(vendor.visible_variable)
    return ids if value is None or not ids else vendor.visible(ids, value)


def cpu_count() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))
