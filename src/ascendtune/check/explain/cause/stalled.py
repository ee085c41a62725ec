"""Logs without a failure that end before the first step, within or directly after the set-up of NCCL.

The run may have just begun, or its ranks may wait for each other: the log does not show which. It is not a failure;
the answer names what to check if no more lines follow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ascendtune.check.explain.event.scan import Scan
from ascendtune.check.explain.language import say

_BAR = re.compile(r" 0%\|[^|]*\| *(?P<done>0/[1-9]\d*) \[00:0\d<\?")
"""A tqdm bar before the first step."""
_RANKS = re.compile(r"\bnranks (?P<count>\d+)\b")
_BEGUN = re.compile(r"NCCL INFO .*(?:\bInit COMPLETE\b|\bvia (?:P2P|SHM|NET)/)")
_NEAR = 40
"""Most lines between NCCL's and the end of the log."""
_LINE_OF_NCCL = re.compile(r"\bNCCL (?:INFO|CALL) (?!.*(?:[Dd]estroy|[Aa]bort|[Ff]inali[sz]e|COMPLETE))")
"""A line of NCCL about its set-up."""
_IN_SET_UP = "no failure was found; but the log ends while NCCL is being set up"
_WHAT = "no failure was found; but the log ends at {done}, right after {ranks} ranks had set up NCCL"
_REMEDIES = (
    "more lines have come since: nothing is wrong; none for minutes: the ranks wait for each other: `nvidia-smi` "
    "(100 % on each card and no progress), and `py-spy dump --pid PID` of each process: all in a collective, or "
    "one elsewhere",
    "all in a collective: NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 for one run: it works: the way between the cards: "
    "`nvidia-smi topo -m; lspci -vvv | grep ACSCtl; dmesg | grep -i -e iommu -e dmar`: SrcValid+, or an IOMMU that is "
    "on: switch ACS and the IOMMU (VT-d) off in the BIOS of a machine without virtual ones",
)


@dataclass(frozen=True)
class Stall:
    done: str
    """Steps of the bar, "0/100"; empty if the log ends within the set-up."""
    ranks: int

    def headline(self) -> str:
        return say(_WHAT, done=self.done, ranks=self.ranks) if self.done else say(_IN_SET_UP)

    @property
    def remedies(self) -> tuple[str, ...]:
        return tuple(map(say, _REMEDIES))


def stalled_at_start(scans: Iterable[Scan]) -> Stall | None:
    """The first log that ends in this way; None if there is none."""
    return next(filter(None, map(_stall_of, scans)), None)


def _stall_of(scan: Scan) -> Stall | None:
    lines = [line for line in scan.tail.replace("\r", "\n").split("\n") if line.strip()][-_NEAR:]
    bar = _BAR.search(lines[-1]) if lines else None
    begun = [line for line in lines if _BEGUN.search(line)]
    counts = [int(match["count"]) for match in map(_RANKS.search, begun) if match is not None]
    if lines and _LINE_OF_NCCL.search(lines[-1]):
        return Stall("", 0)
    if bar is None or max(counts, default=0) < 2:
        return None
    return Stall(bar["done"], max(counts))
