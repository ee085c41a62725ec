"""`npu-smi info -t topo`: the link between each two NPUs, and the cores near each."""

from __future__ import annotations

import re
from dataclasses import dataclass

LINKS = {
    "HCCS": "direct link between NPUs",
    "HCCS_SW": "link through an HCCS switch",
    "SIO": "two dies of one card",
    "UB": "unified bus (950)",
    "PIX": "through one PCIe switch",
    "PXB": "through several PCIe switches",
    "PHB": "through the PCIe bridge of one CPU",
    "SYS": "between CPUs",
    "NA": "unknown",
}
"""The legend of npu-smi in our words, near to far."""

_NPU = re.compile(r"NPU([0-9]{1,4})")
_LINK = re.compile(r"[A-Z][A-Z0-9_]*")
_CORES = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*")


@dataclass(frozen=True)
class Topology:
    """`links[a, b]`: the vendor's term for the path from NPU a to b; `cores[a]`: a list of cores, "0-23,96-119"."""

    npus: tuple[int, ...]
    links: dict[tuple[int, int], str]
    cores: dict[int, str]


def read_topology(text: str) -> Topology | None:
    """The first matrix in `text`, or None if there is none. Lines that do not match the header are skipped."""
    header: tuple[int, ...] = ()
    links: dict[tuple[int, int], str] = {}
    cores: dict[int, str] = {}
    for line in text.splitlines():
        words = line.split()
        if named := _header(words):
            if header:
                break
            header = named
        elif header and words and (npu := _NPU.fullmatch(words[0])):
            _read_line(int(npu[1]), words[1:], header, links, cores)
    return Topology(header, links, cores) if header and links else None


def cores_of(text: str) -> set[int]:
    """ "0-2,96" -> {0, 1, 2, 96}; also the form of the kernel's cpulist files."""
    found: set[int] = set()
    for part in text.strip().split(",") if _CORES.fullmatch(text.strip()) else ():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _header(words: list[str]) -> tuple[int, ...]:
    """NPU0 NPU1 … CPU Affinity; a line of the matrix has one NPU only."""
    found = [_NPU.fullmatch(word) for word in words]
    npus = tuple(int(match[1]) for match in found if match)
    complete = len(words) - len(npus) in (0, 2) and words[len(npus) :] in ([], ["CPU", "Affinity"])
    return npus if complete and npus and (len(npus) > 1 or words[1:] == ["CPU", "Affinity"]) else ()


def _read_line(
    npu: int, words: list[str], header: tuple[int, ...], links: dict[tuple[int, int], str], cores: dict[int, str]
) -> None:
    ways, rest = words[: len(header)], words[len(header) :]
    is_right = len(ways) == len(header) and len(rest) <= 1 and all(map(_LINK.fullmatch, ways))
    if npu not in header or not is_right or ways[header.index(npu)] != "X":
        return
    links.update({(npu, other): way for other, way in zip(header, ways, strict=True) if other != npu})
    if rest and _CORES.fullmatch(rest[0]):
        cores[npu] = rest[0]
