"""Finds the entries that a line speaks of, among millions of lines that speak of none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ascendtune.check.explain.knowledge import Entry

GATES = tuple(
    b"error|exception|traceback|fail|timeout|timed out|times out|killed|memory|no space left|cannot|can't|could not|"
    b"not found|undefined symbol|unable|invalid|abort|signal|segmentation|fault|lost|refused|mismatch|exit|"
    b"not supported|unsupported|no such file|closed|closing|abnormal|panic|lockup|stall|unexpected|out of range|broken|"
    b"not compiled|denied|inconsistent|is not |is down|is nan|no module|fatal|disappeared|called asynchronously|"
    b"force stop|fall back|do not |disconnected|insufficient|busy|expected |must be|oom|already|interrupt|"
    b"ei00|ej00|el00|ee10|ez|ee9|e1999|ee20|e3000|err0|errno|errcode|duplicate|unreachable|reset by|longer than|"
    b"different|incompatible|limit|cancelled|is required|not enough|[recv]|xid|padding size".split(b"|")
)
"""Whatever is worth a second look holds one of these, in lower case. Few, for every new line is searched for each."""


@dataclass(frozen=True)
class Hit:
    entry: Entry
    length: int
    """Characters of the anchor; the longer one is the more telling one."""
    names: dict[str, str]
    """What the pattern captured."""


class Matcher:
    """Two steps: gates tell in no time that a block of lines holds nothing; anchors are tried on what is left.

    Anchors that contain no gate are tried on every line that got through one.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._buckets: dict[bytes, list[tuple[tuple[bytes, ...], Entry]]] = {gate: [] for gate in (*GATES, b"")}
        for entry in entries:
            for anchor in entry.anchors:
                parts = tuple(part.encode() for part in anchor)
                gate = max((gate for gate in GATES for part in parts if gate in part), key=len, default=None)
                self._buckets[gate or b""].append((parts, entry))

    def open_gates(self, block: bytes) -> list[bytes]:
        """The gates that occur in `block`, which is in lower case."""
        return [gate for gate in GATES if gate in block]

    def hits(self, line: bytes, text: str, gates: Iterable[bytes]) -> list[Hit]:
        """Everything known that `line` speaks of, the best first: what explains most, then the longest anchor.

        Args:
            line: the line in lower case.
            text: the line as it is, for patterns.
            gates: those to try.
        """
        found: dict[str, Hit] = {}
        for gate in (*gates, b""):
            if gate not in line:
                continue
            for parts, entry in self._buckets[gate]:
                length = _stands_in(parts, line)
                if not length or (entry.id in found and found[entry.id].length >= length):
                    continue
                match = entry.pattern.search(text) if entry.pattern else None
                if entry.pattern and not match:
                    continue
                names = {name: value for name, value in match.groupdict().items() if value} if match else {}
                found[entry.id] = Hit(entry, length, names)
        ranked = sorted(found.values(), key=lambda hit: (hit.entry.weight, -hit.length))
        longest = max(ranked, key=lambda hit: hit.length, default=None)
        # What is known to be harmless is so although the line holds the words of something worse.
        return [longest] if longest and longest.entry.kind == "notice" else ranked


def _stands_in(parts: tuple[bytes, ...], line: bytes) -> int:
    """Length of the anchor when its parts stand in `line` in their order, else 0."""
    start = 0
    for part in parts:
        start = line.find(part, start)
        if start < 0:
            return 0
        start += len(part)
    return sum(map(len, parts))
