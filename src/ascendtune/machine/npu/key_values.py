"""Parses answers of the form `Key : value`: `npu-smi info -t board|usages|common|memory|ecc|health|power|temp`, `info
-l`.

The keys become names with units (`HBM Capacity(MB)` -> `hbm_capacity_bytes`), so that unknown keys of later drivers are
read, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ascendtune.machine.inventory import DeviceProcess
from ascendtune.machine.npu.number import bytes_of, decimal, integer, natural, ratio, whole_lines, word

Fact = int | float | str | None

_PAIR = re.compile(r"\s*(?P<key>[A-Za-z][A-Za-z0-9 ./%_-]*?)\s*(?:\((?P<unit>[A-Za-z%]+)\))?\s*:\s*(?P<value>.*?)\s*")
_PROCESS = re.compile(
    r"Process id\s*:\s*(?P<pid>[0-9]{1,18})\s+Process name\s*:\s*(?P<name>.*?)\s+"
    r"Process memory\((?P<unit>[A-Za-z]+)\)\s*:\s*(?P<memory>[0-9]+)"
)
_COUNTS = ("count", "cnt", "npu_id", "chip_id", "slot_id", "phy_id", "logic_id")
"""Suffixes of names whose values are numbers; other plain values stay text (serial numbers, versions)."""


@dataclass
class Chip:
    """The content of one block of an answer. A block with a `chip_name` but no `chip_id` is a helper chip (mcu)."""

    npu_id: int | None = None
    chip_id: int | None = None
    facts: dict[str, Fact] = field(default_factory=dict)


def read_facts(text: str) -> list[Chip]:
    """The blocks of an answer, each with its card.

    A block ends with an empty line or before a repeated key. The chip's number is before its values (`-t common`) or
    after them (`-t usages`, `-t ecc`); a block that contains only the card's number and counts is skipped. So is a last
    line without a newline: it was cut off, and "Error Code : 80E0" may be the beginning of another code.
    """
    chips: list[Chip] = []
    npu_id: int | None = None
    for block in _blocks(text):
        npu_id = _whole(block.pop("npu_id", npu_id))
        chip_id = _whole(block.pop("chip_id", None))
        if block.keys() - {"chip_count", "total_count"}:
            chips.append(Chip(npu_id, chip_id, block))
    return chips


def read_processes(text: str) -> list[DeviceProcess]:
    """`-t proc-mem`: all processes, of which `npu-smi info` lists at most eight per chip (npu-smi's source)."""
    return [
        DeviceProcess(int(found["pid"]), None, word(found["name"]), bytes_of(found["memory"], found["unit"]))
        for found in _PROCESS.finditer(whole_lines(text))
    ]


def _blocks(text: str) -> Iterator[dict[str, Fact]]:
    block: dict[str, Fact] = {}
    for line in whole_lines(text).splitlines():
        pair = None if "|" in line or _PROCESS.search(line) else _PAIR.fullmatch(line)
        if pair is None:
            if not line.strip() and block:
                yield block
                block = {}
            continue
        name, value = _fact(pair["key"], pair["unit"], pair["value"])
        if name in block:
            yield block
            block = {}
        block[name] = value
    if block:
        yield block


def _fact(key: str, unit: str | None, value: str) -> tuple[str, Fact]:
    if unit == "%":
        return f"{_snake(key.removesuffix(' Rate'))}_ratio", ratio(value)
    if unit is not None and bytes_of("0", unit) is not None:
        return f"{_snake(key)}_bytes", bytes_of(value, unit)
    match (unit or "").lower():
        case "c":
            return f"{_snake(key)}_celsius", integer(value)
        case "w":
            return f"{_snake(key)}_watts", decimal(value)
        case "mhz":
            number = natural(value)
            return f"{_snake(key)}_hertz", None if number is None else number * 1_000_000
        case "page":
            return f"{_snake(key)}_pages", natural(value)
    name = _snake(f"{key} {unit or ''}")
    # Drivers up to 25 write "Health Status", the 950's "Health".
    name = "health" if name == "health_status" else name
    return name, integer(value) if name.endswith(_COUNTS) else word(value)


def _snake(key: str) -> str:
    return "_".join(re.findall(r"[a-z0-9]+", key.lower()))


def _whole(value: Fact) -> int | None:
    return value if isinstance(value, int) else None
