"""The devices of a plan: by name, by memory size, or those of this machine. Free of torch."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ascendtune.core.errors import InputError
from ascendtune.core.suggest import did_you_mean
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.train.plan.request import Target

_GIB = 2**30
_UNITS = {
    **dict.fromkeys(("GIB", "GI", "G"), _GIB), "GB": 10**9,
    **dict.fromkeys(("MIB", "MI", "M"), 2 ** 20), "MB": 10**6,
    **dict.fromkeys(("TIB", "TI", "T"), 2 ** 40), "TB": 10**12,
}  # fmt: skip
"""`Gi` is the unit of Kubernetes."""


@cache
def table() -> dict[str, dict[str, Any]]:
    """The content of devices.toml."""
    return tomllib.loads(files("ascendtune.train.plan").joinpath("devices.toml").read_text())


def named_target(name: str, devices: int) -> Target:
    """A device of the table, by its name.

    Raises:
        InputError: the table has no such device.
    """
    short_name = name.lower().removeprefix("ascend").strip()
    for entry in table().values():
        if short_name in entry["names"]:
            kind = entry["kind"]
            memory = int(entry["memory_gib"] * _GIB)
            context = vendor_of(kind).planned.context_bytes
            return Target(kind, entry["title"], memory, devices, entry.get("bf16", True), context)
    all_names = sorted(each for entry in table().values() for each in entry["names"])
    # A prefix such as 910b: its devices differ in memory.
    kinds = [each for each in all_names if each.startswith(short_name)] if short_name else []
    raise InputError(
        f"'{name}' is not in the table of devices",
        code="unknown-device",
        remedy=f"give one of: {', '.join(kinds)}"
        if len(kinds) > 1
        else did_you_mean(
            name, all_names, f"choose from: {', '.join(all_names)}; or give --memory, as in --memory 64GiB"
        ),
    )


@dataclass(frozen=True)
class Speed:
    """Published figures of one device; None if a figure is not public."""

    flops: float | None = None
    """Dense FLOP/s in the compute dtype of the run."""
    memory: float | None = None
    """Bandwidth of the device's own memory, in bytes per second."""
    link: float | None = None
    """Bytes per second to the other devices of its node, in one direction; in a mesh to each of them."""
    link_is_mesh: bool = False
    power: float | None = None
    """Power limit of the board in watts."""
    host_link: float | None = None
    """Bytes per second between host and device, in one direction."""
    network: float | None = None
    """Bytes per second of one device to other nodes, in one direction: set by the user, not published."""

    def link_among(self, devices: int) -> float | None:
        """Bytes per second in one direction to `devices` - 1 other devices together."""
        return self.link * (devices - 1) if self.link is not None and self.link_is_mesh else self.link


def known_name(name: str) -> str:
    """The table's title for a device name reported by driver or torch; unknown names are returned unchanged."""
    entry = _entry(name)
    return name if entry is None else str(entry["title"])


def _entry(name: str) -> dict[str, Any] | None:
    def matches(entry: dict[str, Any]) -> bool:
        # The name of a part of a chip (MIG) contains that of the chip.
        return name == entry["title"] or (re.search(entry["reports"], name) is not None and " MIG " not in name)

    return next((entry for entry in table().values() if matches(entry)), None)


def computes_bf16(name: str) -> bool:
    """Whether the device with this name, as driver and torch report it, computes bf16; True for unknown devices."""
    return bool((_entry(name) or {}).get("bf16", True))


def speed_of(name: str, compute: str) -> Speed:
    """Figures of the device with this name, from the table or as driver and torch report it.

    Args:
        compute: bf16, fp16 or fp32.
    """
    speeds = (_entry(name) or {}).get("speed", {})
    return Speed(
        speeds.get("flops", {}).get(compute), speeds.get("memory_bytes_per_second"),
        speeds.get("link_bytes_per_second"), speeds.get("link_is_mesh", False), speeds.get("power_watts"),
        speeds.get("host_link_bytes_per_second"),
    )  # fmt: skip


def bytes_of(text: str) -> int:
    """Number of bytes in a text such as 64GiB, 80GB or 24G.

    Raises:
        InputError: the text is not a size.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([A-Za-z]+)", text.strip())
    if match is None or match[2].upper() not in _UNITS or float(match[1]) <= 0:
        raise InputError(
            f"--memory: '{text}' is not a size", code="invalid-value", remedy="write it as 64GiB, 80GB or 512MiB"
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])
