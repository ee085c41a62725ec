"""`npu-smi info watch`: one row a second for each die, under a header that is printed once.

Forms are those of transcripts of the 310B, 910B and 950. `-s` chooses columns, so the header says which are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ascendtune.machine.npu.number import decimal, integer, natural, ratio


@dataclass(frozen=True)
class Sample:
    """One row; what its header does not name is None."""

    npu_id: int | None
    chip_id: int | None = None
    power_watts: float | None = None
    temperature_celsius: int | None = None
    ai_core_ratio: float | None = None
    ai_cpu_ratio: float | None = None
    control_cpu_ratio: float | None = None
    memory_ratio: float | None = None
    memory_bandwidth_ratio: float | None = None
    npu_ratio: float | None = None
    ai_cube_ratio: float | None = None


_COLUMNS = {
    "npuid": ("npu_id", natural),
    "chipid": ("chip_id", natural),
    "pwr": ("power_watts", decimal),
    "temp": ("temperature_celsius", integer),
    "ai core": ("ai_core_ratio", ratio),
    "ai cpu": ("ai_cpu_ratio", ratio),
    "ctrl cpu": ("control_cpu_ratio", ratio),
    "memory": ("memory_ratio", ratio),
    "memory bw": ("memory_bandwidth_ratio", ratio),
    "npu util": ("npu_ratio", ratio),
    "ai cube": ("ai_cube_ratio", ratio),
}


def read_watch(lines: Iterable[str]) -> Iterator[Sample]:
    """Each row as it comes. A row that does not fit the header above it (cut off, or other words) is left out."""
    header: list[str] = []
    for line in lines:
        if named := re.findall(r"([A-Za-z]+(?: [A-Za-z]+)*)\([A-Za-z%]+\)", line):
            header = [name.lower() for name in named]
            continue
        values = line.split()
        if header[:1] == ["npuid"] and len(values) == len(header) and natural(values[0]) is not None:
            known = [(_COLUMNS[name], value) for name, value in zip(header, values, strict=True) if name in _COLUMNS]
            fields: dict[str, Any] = {field: read(value) for (field, read), value in known}
            yield Sample(**fields)
