"""`npu-smi info`: the table of every generation and driver.

A chip has two lines: card, name, health, power, temperature, huge pages; then chip, bus, utilisation, memory. The
columns are determined by the two header lines, so that an extra border (950), an extra column (A3's Phy-ID, the
inference cards' Device), a missing one (no HBM) or another order have no effect. Without header lines only values with
an unambiguous format are read: card and name, health, bus.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ascendtune.machine.inventory import Accelerator, DeviceProcess, Trouble
from ascendtune.machine.language import say
from ascendtune.machine.npu import smi_table as table
from ascendtune.machine.npu.number import bytes_of, decimal, integer, natural, pair, ratio, word
from ascendtune.machine.npu.smi_table import Header, TableRow, Values
from ascendtune.machine.npu.trouble import read_troubles

_VERSIONS = re.compile(r"\|\s*npu-smi\s+(?P<tool>[^\s|]+)(?:\s+Version:\s*(?P<driver>[^\s|]+)\s*\||\s)")
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]{1,4}")
_CARD_AND_NAME = re.compile(r"(?P<npu>[0-9]+)\s+(?P<name>(?=\S*[A-Za-z])\S+)")
_NO_PROCESS = re.compile(r"No running processes found in NPU (?P<npu>[0-9]{1,9})")
_FIRST_WITH_PROCESSES = 23
"""Transcripts of the drivers 1.9 to 22.0 end with the table of cards, those from 23.0 on with that of processes. Boards
that are computers themselves (310B, whose bus is NA) have none: public transcripts of 23.0.rc3, 23.0.0, 25.0.rc1.1."""
_HEALTHS = {"ok", "warning", "alarm", "critical", "unknown"}
"""npu-smi's terms for health (manual of npu-smi: general, important, emergency alarm)."""


@dataclass(frozen=True)
class NpuSmiInfo:
    """The content of one `npu-smi info`."""

    npu_smi_version: str | None = None
    driver_version: str | None = None
    devices: tuple[Accelerator, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    whole: bool = False
    """Whether no line and no chip seems to be missing: then the index of a device in the table is its logical id."""


def read_info(text: str) -> NpuSmiInfo:
    """Parse the output of `npu-smi info`, or a capture that contains it. Of several tables the last with devices
    counts.

    Never raises; unknown values are None, error messages of npu-smi are among the troubles.
    """
    readers = [_Reader()]
    for line in map(table.clean, text.splitlines()):
        if _VERSIONS.search(line) and not readers[-1].is_untouched:
            readers.append(_Reader())
        readers[-1].read(line)
    last_with_cards = next((reader for reader in reversed(readers) if reader.cards), readers[0])
    return replace(last_with_cards.result(), troubles=read_troubles(text) + last_with_cards.troubles())


@dataclass
class _Card:
    first: Accelerator
    second: Accelerator | None = None


@dataclass
class _Reader:
    """Reads line by line; the headers above a line determine its type."""

    tool: str | None = None
    driver: str | None = None
    upper: Header | None = None
    lower: Header | None = None
    process: Header | None = None
    open: _Card | None = None
    """The chip whose second line is expected; a border closes it."""
    elided: bool = False
    cards: list[_Card] = field(default_factory=list)
    processes: list[tuple[int, int | None, DeviceProcess]] = field(default_factory=list)
    told: set[int] = field(default_factory=set)
    """Cards whose part of the process table is complete."""
    pending: set[int] = field(default_factory=set)
    """Cards with processes in a part that no border has closed yet."""
    width: int = 0
    """Characters of the longest border: all borders of a table are equally long."""
    closed: bool = False
    """Whether the last line of the table is a complete border."""
    foreign: bool = False
    """Whether the line above is not npu-smi's; within a table, it may have replaced one."""
    damaged: bool = False
    """Whether a line is missing or cannot be read: a chip has one of its two lines, or a process may be hidden."""

    @property
    def is_untouched(self) -> bool:
        return self == _Reader()

    def read(self, line: str) -> None:
        if versions := _VERSIONS.search(line):
            self.tool, self.driver = versions["tool"], versions["driver"]
        elif table.is_border(line) or table.is_elision(line):
            self._end_foreign_lines()
            self._read_border(line)
        elif row := table.read_row(line):
            self._end_foreign_lines()
            if header := table.read_header(row):
                self._read_header(header)
            elif self.process:
                self._read_process(row, self.process)
            else:
                self._read_line_of_chip(row)
        elif line.strip() and not self._is_complete:
            if line.lstrip().startswith("|"):
                # A line of the table whose other borders were cut off or overwritten.
                self.damaged, self.closed = True, False
            else:
                self.foreign = True

    def _end_foreign_lines(self) -> None:
        self.damaged |= self.foreign and self.process is not None
        self.foreign = False

    def _read_border(self, line: str) -> None:
        self._end_chip()
        if table.is_border(line):
            length = len(line.strip())
            self.width = max(self.width, length)
            self.closed = bool(self.cards) and length == self.width
            self.told |= self.pending
        self.elided |= table.is_elision(line) and self.process is None
        self.pending = set()

    def _end_chip(self) -> None:
        self.damaged |= self.open is not None
        self.open = None

    def _read_header(self, header: Header) -> None:
        found = table.names(header)
        self._end_chip()
        self.closed = False
        if "pid" in found:
            self.process = header
        elif "npu" in found and found & {"name", "health"}:
            self.upper, self.lower, self.process = header, None, None
            self.told, self.pending = set(), set()
        elif "bus" in found:
            self.lower = header

    def _read_line_of_chip(self, row: TableRow) -> None:
        if first := _first_line(row, self.upper):
            self._end_chip()
            self.open = _Card(first)
            self.cards.append(self.open)
            self.closed = False
        elif second := _second_line(row, self.lower):
            if self.open:
                self.open.second = second
            else:
                self.damaged = True
            self.open = None
        elif len(row.cells) >= (len(self.lower) if self.lower else 3):
            # A line of this table that cannot be read; the next one may belong to another chip.
            self.open, self.damaged = None, True

    def _read_process(self, row: TableRow, header: Header) -> None:
        if len(row.cells) == 1 and (none := _NO_PROCESS.fullmatch(row.cells[0])):
            self.told.add(int(none["npu"]))
            self.closed = False
            return
        values = table.read_values(row, header) or {}
        npu, pid, chip = (natural(values.get(name)) for name in ("npu", "pid", "chip"))
        if npu is None or pid is None or (chip is None and "chip" in table.names(header)):
            if not self._is_complete:
                self.damaged, self.closed = True, False
            return
        used = bytes_of(values.get("process_memory"), table.unit(header, "process_memory"))
        container_pid = natural(values.get("container_pid"))
        process = DeviceProcess(pid, container_pid, word(values.get("process")), used)
        self.processes.append((npu, chip, process))
        self.pending.add(npu)
        self.closed = False

    def result(self) -> NpuSmiInfo:
        found: dict[Accelerator, tuple[DeviceProcess, ...]] = {}
        for card in self.cards:
            own_processes = [process for npu, chip, process in self.processes if self._holder(npu, chip) is card]
            found.setdefault(_joined(card), tuple(dict.fromkeys(own_processes)))
        # If a table was cut off, no device counts as free: the missing lines may have processes of any of them.
        known = self._cut() is None and not self._lost_processes()
        devices = [replace(device, processes=processes, processes_known=known) for device, processes in found.items()]
        whole = (
            bool(self.upper and self.lower) and not self.elided and not self.damaged and self._is_consecutive(devices)
        )
        return NpuSmiInfo(self.tool, self.driver, tuple(devices), whole=whole)

    def _is_consecutive(self, devices: list[Accelerator]) -> bool:
        """Whether the chips of each card, and the physical ids if there is such a column, have no gaps."""
        chips: dict[int | None, list[int]] = {}
        for device in devices:
            if device.chip_id is not None:
                chips.setdefault(device.npu_id, []).append(device.chip_id)
            elif sum(card.first.npu_id == device.npu_id for card in self.cards) > 1:
                return False  # one chip that is listed twice, or two
        physical = [device.phy_id for device in devices if device.phy_id is not None]
        return all(sorted(each) == list(range(len(each))) for each in chips.values()) and all(
            after == before + 1 for before, after in pairwise(physical)
        )

    def _lost_processes(self) -> list[int]:
        """Pids on devices that the table does not list."""
        return [process.pid for npu, chip, process in self.processes if self._holder(npu, chip) is None]

    @property
    def _listed(self) -> set[int]:
        return {card.first.npu_id for card in self.cards if card.first.npu_id is not None}

    @property
    def _is_complete(self) -> bool:
        """Whether the last border of the process table was read: lines after it do not belong to it."""
        return self.closed and self.process is not None and self._listed <= self.told

    @property
    def _has_process_table(self) -> bool:
        """Whether there is one, or must have been one before the answer was cut off."""
        version = natural((self.driver or self.tool or "").partition(".")[0])
        is_older = version is not None and version < _FIRST_WITH_PROCESSES
        is_a_board = bool(self.lower) and all(card.second and card.second.bus_id is None for card in self.cards)
        return self.process is not None or not (is_older or is_a_board)

    def troubles(self) -> tuple[Trouble, ...]:
        found = []
        if cut := self._cut():
            what = say("the table of npu-smi is cut off ({cut}): the free devices are unknown", cut=cut)
            remedy = say("run `npu-smi info` again, and keep its output up to the last border")
            found.append(Trouble("npu_smi_cut_off", what, remedy))
        if lost := self._lost_processes():
            what = say("processes on devices that the table does not list: {pids}", pids=", ".join(map(str, lost)))
            remedy = say("run `npu-smi info` again; its output was cut off")
            found.append(Trouble("process_without_device", what, remedy))
        return tuple(found)

    def _cut(self) -> str | None:
        """The missing part of a table of devices, or None if nothing is missing."""
        if not self.cards:
            return None
        if self._has_process_table and self.process is None:
            return say("its process table is missing")
        if not self.closed:
            return say("its bottom border is missing")
        if self.damaged:
            return say("a line is missing or cannot be read")
        if not self._has_process_table:
            return None
        if open_cards := sorted(self._listed - self.told):
            return say("its process table lacks NPU {npus}", npus=", ".join(map(str, open_cards)))
        if lost_cards := sorted(self.told - self._listed):
            return say("its table of cards lacks NPU {npus}", npus=", ".join(map(str, lost_cards)))
        return None

    def _holder(self, npu: int, chip: int | None) -> _Card | None:
        """The only chip that a line of the process table can mean; a chip that is listed twice counts once."""
        matching = [card for card in self.cards if card.first.npu_id == npu and _chip_fits(card, chip)]
        return matching[0] if len(set(map(_joined, matching))) == 1 else None


def _chip_fits(card: _Card, chip: int | None) -> bool:
    # A card whose chip is unknown may be one of two, the other of which was cut off.
    return chip is None or (card.second is not None and card.second.chip_id == chip)


def _joined(card: _Card) -> Accelerator:
    if card.second is None:
        return card.first
    return replace(
        card.second,
        npu_id=card.first.npu_id,
        name=card.first.name,
        health=card.first.health,
        power_watts=card.first.power_watts,
        temperature_celsius=card.first.temperature_celsius,
        hugepages_used=card.first.hugepages_used,
        hugepages_total=card.first.hugepages_total,
    )


def _first_line(row: TableRow, header: Header | None) -> Accelerator | None:
    if header is None:
        return _first_line_by_form(row)
    values = table.read_values(row, header) or {}
    npu, name, health = natural(values.get("npu")), word(values.get("name")), word(values.get("health"))
    if npu is None or not (_is_word(name) or _is_word(health)) or _BUS.fullmatch(health or ""):
        return None
    # A name of digits only is a chip's second line, unless it has a health beside it: the Ascend 310.
    if name is not None and name.isdecimal() and (health or "").lower() not in _HEALTHS:
        return None
    used, total = pair(values.get("hugepages"))
    return Accelerator(
        "npu",
        npu_id=npu,
        name=name,
        health=health,
        power_watts=decimal(values.get("power")) if table.unit(header, "power") == "W" else None,
        temperature_celsius=integer(values.get("temperature")) if table.unit(header, "temperature") == "C" else None,
        hugepages_used=natural(used),
        hugepages_total=natural(total),
    )


def _first_line_by_form(row: TableRow) -> Accelerator | None:
    cards = [match for cell in row.cells if (match := _CARD_AND_NAME.fullmatch(cell))]
    healths = [cell for cell in row.cells if cell.lower() in _HEALTHS]
    if len(cards) != 1 or len(healths) != 1:
        return None
    return Accelerator("npu", npu_id=natural(cards[0]["npu"]), name=word(cards[0]["name"]), health=healths[0])


def _second_line(row: TableRow, header: Header | None) -> Accelerator | None:
    if header is None:
        buses = [cell for cell in row.cells if _BUS.fullmatch(cell)]
        return Accelerator("npu", bus_id=buses[0]) if len(buses) == 1 else None
    values = table.read_values(row, header)
    if not values or not _is_second(values, header):
        return None
    used, total = _memory(values, header)
    return Accelerator(
        "npu",
        chip_id=natural(values.get("chip")),
        phy_id=natural(values.get("phy")),
        logical_id=natural(values.get("logical")),
        bus_id=word(values.get("bus")),
        utilization_ratio=ratio(values.get("aicore", values.get("npu_utilization"))),
        memory_used_bytes=used,
        memory_total_bytes=total,
    )


def _is_second(values: Values, header: Header) -> bool:
    bus = values.get("bus", "")
    if not _BUS.fullmatch(bus) and bus != "NA":
        return False
    return "chip" not in table.names(header) or natural(values.get("chip")) is not None


def _memory(values: Values, header: Header) -> tuple[int | None, int | None]:
    """HBM if the chip has HBM, else DDR. A chip with one of them reports 0 / 0 for the other."""
    hbm_used, hbm_total = _amounts(values, header, "hbm")
    # A column with an unreadable name may be that of HBM.
    could_be_hbm = "hbm" in table.names(header) or any(column.name is None for cell in header for column in cell)
    if hbm_total or (could_be_hbm and hbm_total != 0):
        return hbm_used, hbm_total
    ddr_used, ddr_total = _amounts(values, header, "memory")
    return (ddr_used, ddr_total) if ddr_total else (None, None)


def _amounts(values: Values, header: Header, name: str) -> tuple[int | None, int | None]:
    used, total = pair(values.get(name))
    unit = table.unit(header, name)
    return bytes_of(used, unit), bytes_of(total, unit)


def _is_word(text: str | None) -> bool:
    return text is not None and any(character.isalpha() for character in text)
