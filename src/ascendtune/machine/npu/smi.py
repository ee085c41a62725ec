"""Queries of npu-smi. It hangs when a card or its driver hangs; after one time-out it is not started again."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ascendtune.core.process import Finished, run
from ascendtune.machine.inventory import Accelerator, Trouble
from ascendtune.machine.language import say
from ascendtune.machine.npu.info import NpuSmiInfo, read_info
from ascendtune.machine.npu.key_values import Chip, read_facts, read_processes
from ascendtune.machine.npu.number import natural, word
from ascendtune.machine.npu.topology import Topology, read_topology

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
    """The chips in the order of the answer; empty without a header line, because the numbers then have no meaning."""
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


TIMEOUT_SECONDS = 5.0

_PLACES = ("npu-smi", "/usr/local/sbin/npu-smi", "/usr/local/bin/npu-smi")
"""PATH, then the paths of drivers' installers; images differ (documentation of ms-swift, NPU support)."""
_PROCESSES_SHOWN = 8
"""npu-smi's source: MAX_CHIP_PROCESS_NUM. Further lines are omitted without a message."""


class NpuSmi:
    """A sequence of queries of npu-smi; `troubles` collects their errors."""

    def __init__(
        self,
        timeout_seconds: float = TIMEOUT_SECONDS,
        *,
        env: Mapping[str, str] | None = None,
        root: Path = Path("/"),
    ) -> None:
        """Runs nothing yet. `env` is the environment of npu-smi (default: ours), `root` the root of its paths."""
        self._timeout_seconds = timeout_seconds
        self._env = os.environ if env is None else env
        self._root = root
        self._program: str | None = _PLACES[0]
        self.troubles: list[Trouble] = []

    @property
    def is_available(self) -> bool:
        """False once npu-smi was found to be missing, or to hang."""
        return self._program is not None

    def info(self) -> NpuSmiInfo:
        """Every chip, with values that the table lacks queried one by one: ids, load and capacity, further
        processes."""
        answer = self.output_of("info")
        info = read_info(answer)
        self.troubles.extend(info.troubles)
        if self.is_available and not info.devices and not info.troubles:
            self.troubles.append(_no_table(answer))
        # Before the ids: a chip without a number in the table (950) must not be queried by a number.
        completed = replace(info, devices=tuple(self._completed(device) for device in info.devices))
        return replace(info, devices=self._with_ids(completed))

    def topology(self) -> Topology | None:
        """The links between NPUs, or None if npu-smi does not report them."""
        return read_topology(self.output_of("info", "-t", "topo"))

    def output_of(self, *words: str) -> str:
        """The output of npu-smi, of both streams; empty if it is missing or hangs."""
        if self._program is None:
            return ""
        done = self._run(words)
        if done.timed_out:
            self.troubles.append(_hanging(words, self._timeout_seconds))
        elif done.exit_code == 126:
            self.troubles.append(_forbidden(done))
        if done.timed_out or done.exit_code in (126, 127):
            self._program = None
        return done.output + ("" if done.timed_out or _is_missing(done) or done.exit_code == 126 else done.error)

    def _run(self, words: tuple[str, ...]) -> Finished:
        """The first of the known paths that has npu-smi; later queries use the same."""
        places = _PLACES if self._program == _PLACES[0] else (self._program or "",)
        env = {**self._env, "LC_ALL": "C"}
        for place in places:
            program = str(self._root / place.lstrip("/")) if place.startswith("/") else place
            done = run([program, *words], timeout_seconds=self._timeout_seconds, env=env)
            if not _is_missing(done):
                self._program = place
                break
        return done

    def _with_ids(self, info: NpuSmiInfo) -> tuple[Accelerator, ...]:
        """Chip, physical and logical ids from `-m`; without it the logical id is the index in a complete table."""
        places = read_mapping(self.output_of("info", "-m")) if info.devices else []
        found = []
        for place_in_table, device in enumerate(info.devices):
            place = _place_of(device, places)
            logical_id = device.logical_id if place is None or place.logical_id is None else place.logical_id
            if logical_id is None and info.whole:
                logical_id = place_in_table
            if place is not None:
                phy_id = place.phy_id if device.phy_id is None else device.phy_id
                device = replace(device, chip_id=place.chip_id, phy_id=phy_id)
            found.append(replace(device, logical_id=logical_id))
        return tuple(found)

    def _completed(self, device: Accelerator) -> Accelerator:
        if device.utilization_ratio is None or device.memory_total_bytes is None:
            device = _with_usages(device, read_facts(self._query_device(device, "usages")))
        if len(device.processes) >= _PROCESSES_SHOWN:
            known = {process.pid for process in device.processes}
            listed = {each.pid: each for each in read_processes(self._query_device(device, "proc-mem"))}
            further = (process for pid, process in listed.items() if pid not in known)
            device = replace(device, processes=(*device.processes, *further))
        return device

    def _query_device(self, device: Accelerator, subject: str) -> str:
        chip = ("-c", str(device.chip_id)) if device.chip_id is not None else ()
        return self.output_of("info", "-t", subject, "-i", str(device.npu_id), *chip)


def _is_missing(done: Finished) -> bool:
    """Whether the program does not exist. The loader also exits with 127 for a missing library, with a message."""
    return done.exit_code == 127 and done.error == f"{done.argv[0]}: not found"


def _place_of(device: Accelerator, places: list[ChipIds]) -> ChipIds | None:
    matching = [
        place
        for place in places
        if place.npu_id == device.npu_id
        and device.chip_id in (None, place.chip_id)
        and (place.name or "").lower() != "mcu"
    ]
    return matching[0] if len(matching) == 1 else None


def _with_usages(device: Accelerator, chips: list[Chip]) -> Accelerator:
    matching = [chip for chip in chips if chip.npu_id == device.npu_id and chip.chip_id in (None, device.chip_id)]
    if len(matching) != 1:
        return device
    facts = matching[0].facts
    load = facts.get("aicore_usage_ratio", facts.get("npu_utilization_ratio"))
    total = facts.get("hbm_capacity_bytes") or facts.get("ddr_capacity_bytes")
    if device.utilization_ratio is None and isinstance(load, float):
        device = replace(device, utilization_ratio=load)
    if device.memory_total_bytes is None and isinstance(total, int):
        device = replace(device, memory_total_bytes=total)
    return device


def _hanging(words: tuple[str, ...], seconds: float) -> Trouble:
    return Trouble(
        "npu_smi_hangs",
        say("npu-smi {words} gave no answer within {seconds:g} s", words=" ".join(words), seconds=seconds),
        say(
            "look at the kernel log (dmesg); end processes that use the cards; restart the machine if the "
            "problem persists"
        ),
        blinding=words == ("info",),
    )


def _forbidden(done: Finished) -> Trouble:
    remedy = say("check its owner and mode, and that it was built for this processor")
    return Trouble("npu_smi_not_executable", say("npu-smi cannot be executed"), remedy, done.error, blinding=True)


def _no_table(answer: str) -> Trouble:
    remedy = say("run `npu-smi info` by hand; include its output in a bug report")
    evidence = next((line.strip() for line in answer.splitlines() if line.strip()), "")
    what = say("npu-smi info printed no table of devices")
    return Trouble("npu_smi_no_table", what, remedy, evidence, blinding=True)
