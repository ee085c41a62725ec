"""The devices of a plan: by name, by size, or those that are here. No torch."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from ascendtune.core.errors import InputError
from ascendtune.core.suggest import did_you_mean
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.train.plan.request import Target

_GIB = 2**30
_UNITS = {"GIB": _GIB, "G": _GIB, "GB": 10**9, "MIB": 2**20, "TIB": 2**40}


@cache
def table() -> dict[str, dict[str, Any]]:
    """The content of devices.toml."""
    return tomllib.loads(files("ascendtune.train.plan").joinpath("devices.toml").read_text())


def named_target(name: str, devices: int) -> Target:
    """A device of the table.

    Raises:
        InputError: the table has no such device.
    """
    wanted = name.lower().removeprefix("ascend").strip()
    for entry in table().values():
        if wanted in entry["names"]:
            kind = entry["kind"]
            memory = int(entry["memory_gib"] * _GIB)
            context = vendor_of(kind).planned.context_bytes
            return Target(kind, entry["title"], memory, devices, entry.get("bf16", True), context)
    known = sorted(each for entry in table().values() for each in entry["names"])
    raise InputError(
        f"'{name}' is not in the table of devices",
        code="unknown-device",
        remedy=did_you_mean(name, known, f"choose from: {', '.join(known)}; or give --memory, as in --memory 64GiB"),
    )


def bytes_of(text: str) -> int:
    """64GiB, 80GB, 24G -> bytes.

    Raises:
        InputError: not a size.
    """
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([A-Za-z]+)", text.strip())
    if found is None or found[2].upper() not in _UNITS or float(found[1]) <= 0:
        raise InputError(
            f"--memory: '{text}' is not a size", code="invalid-value", remedy="write it as 64GiB, 80GB or 512MiB"
        )
    return int(float(found[1]) * _UNITS[found[2].upper()])
