"""`npu-smi info -m`: which card and chip is which logical and physical device."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ascendtune.machine.npu.number import natural, word

# Headers of the 910, of A3 and of the 950 (npu-smi's source, github.com/hicann/driver: print_mapping_info*).
_COLUMNS = {
    "NPU ID": "npu_id",
    "Slot ID": "slot_id",
    "Chip ID": "chip_id",
    "Chip Logic ID": "logical_id",
    "Chip Phy-ID": "phy_id",
    "Chip Name": "name",
}


@dataclass(frozen=True)
class ChipIds:
    """One chip. A helper chip (Mcu) has neither a logical nor a physical id, and cannot compute."""

    npu_id: int
    chip_id: int
    logical_id: int | None = None
    phy_id: int | None = None
    name: str | None = None


def read_mapping(text: str) -> list[ChipIds]:
    """The chips in the order of the answer; empty without a header line, for then no number has a meaning."""
    places: list[ChipIds] = []
    header: list[str | None] = []
    for line in text.splitlines():
        cells = re.split(r"\s{2,}|\t", line.strip())
        names = [_COLUMNS.get(cell) for cell in cells]
        if "npu_id" in names and "chip_id" in names:
            header = names
            continue
        if len(cells) != len(header):
            continue
        values = {name: cell for name, cell in zip(header, cells, strict=True) if name}
        npu_id, chip_id = natural(values["npu_id"]), natural(values["chip_id"])
        if npu_id is not None and chip_id is not None:
            logical_id, phy_id = natural(values.get("logical_id")), natural(values.get("phy_id"))
            places.append(ChipIds(npu_id, chip_id, logical_id, phy_id, word(values.get("name"))))
    return places
