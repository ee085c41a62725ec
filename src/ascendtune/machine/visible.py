"""The devices that a new process could use, determined without importing torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ascendtune.machine.language import say
from ascendtune.machine.vendor.base import Vendor
from ascendtune.machine.vendor.find import ACCELERATORS, CPU, vendor_of

Kind = Literal["cpu", "cuda", "npu"]

_NOTHING = ("", "-1", "NoDevFiles")
"""Values by which users, and Slurm, hide all devices."""


@dataclass(frozen=True)
class VisibleDevices:
    """The devices of one kind, as values of the kind's visibility variable: "0", "1", "GPU-8f1…"."""

    kind: Kind
    ids: tuple[str, ...]
    note: str | None = None
    """The reason why devices of the machine are not among them."""

    @property
    def vendor(self) -> Vendor:
        return vendor_of(self.kind)

    def label(self, index: int) -> str:
        """Name of one of them in messages: "NPU 3"."""
        return f"{self.vendor.noun} {self.ids[index]}" if self.vendor.is_accelerator else say("the CPU")


def visible_devices(env: Mapping[str, str] | None = None, dev: Path = Path("/dev")) -> VisibleDevices:
    """NPUs, else GPUs, else the CPU; only those that the installed torch can compute on.

    Args:
        env: the environment to use (default: this process's).
        dev: directory of device files.
    """
    notes = []
    for vendor in ACCELERATORS:
        ids = attached(vendor, env, dev)
        left_out = _left_out(vendor, ids, env, dev)
        if not ids:
            notes += [left_out] if left_out else []
            continue
        why_unused = vendor.why_unused()
        if why_unused is None:
            return VisibleDevices(vendor.kind, ids, left_out)
        notes.append(f"{len(ids)} {vendor.noun} here are not used: {why_unused}")
    return VisibleDevices(CPU.kind, ("0",), notes[0] if notes else None)


def _left_out(vendor: Vendor, ids: Sequence[str], env: Mapping[str, str] | None, dev: Path) -> str | None:
    """A note that the visibility variable names more devices than the runtime shows; None if it does not."""
    value = (os.environ if env is None else env).get(vendor.visible_variable)
    if value is None or value.strip() in _NOTHING or len(ids) == len(value.split(",")) or not vendor.device_ids(dev):
        return None
    shown = f"only {vendor.noun} {', '.join(ids)}" if ids else f"no {vendor.noun}"
    return (
        f"{vendor.visible_variable}={value} leaves {shown}, as the runtime reads it; "
        "`ascendtune doctor visible_devices` says why"
    )


def attached(vendor: Vendor, env: Mapping[str, str] | None = None, dev: Path = Path("/dev")) -> tuple[str, ...]:
    """The accelerators of `vendor` that are present and visible, whether or not the installed torch can use them."""
    env = os.environ if env is None else env
    ids, value = vendor.device_ids(dev), env.get(vendor.visible_variable)
    return ids if value is None or not ids else vendor.existing(vendor.visible(ids, value))


def cpu_count() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))
