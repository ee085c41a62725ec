"""Finds ranks that are in another collective than the others, by the time-outs that all of them report.

torch counts the collectives of a process group (`SeqNum`). A rank at a lower number is behind: it was slow, or hung
before. Only another operation or size at the same number shows that the ranks make different calls.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_WORK = re.compile(r"\bSeqNum=(?P<number>\d+), OpType=(?P<operation>\w+)(?:, NumelIn=(?P<elements>\d+))?")
_GROUP = re.compile(r"\bPG GUID (\w+)")
_NAMED_GROUP = re.compile(r"\bPG GUID \w+\((\w+)\)")
_DEFAULT_GROUP = "default_pg"
_POINT_TO_POINT = ("SEND", "RECV", "COALESCED")
"""Operations between two ranks, which are counted for each pair."""
_SAME_SIZE = ("ALLREDUCE", "REDUCE", "BROADCAST", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
"""Collectives in which all ranks pass the same number of elements."""
_FEWEST = 3
"""Fewest ranks: of two that differ either may be the odd one; and in a larger job they may be in two groups."""


@dataclass(frozen=True)
class OddRanks:
    """Ranks whose collective differs from that of most others."""

    ranks: tuple[int, ...]
    kind: str
    """`behind`, `operation` or `size`; `apart` if two ranks differ and neither is the odd one."""
    theirs: str
    """Collective of these ranks, with its number. For `size` the number of elements."""
    others: str
    """The same of most ranks."""
    operation: str
    """Collective of most ranks, with its number."""


@dataclass(frozen=True)
class _Work:
    rank: int
    number: int
    operation: str
    elements: str

    @property
    def name(self) -> str:
        return f"{self.operation} {self.number}"


def odd_ranks(texts: dict[int, str], *, of_two: bool) -> OddRanks | None:
    """Ranks that are behind, else those that make another call; None if all wait in the same collective.

    Args:
        texts: by rank, the line with its time-out.
        of_two: whether the job has two ranks.
    """
    works = [work for work in _works_of_one_group(texts) if work.operation not in _POINT_TO_POINT]
    if len(works) < (2 if of_two else _FEWEST):
        return None
    last = max(work.number for work in works)
    if behind := [work for work in works if work.number < last]:
        lowest = min(work.number for work in works)
        return _odd("behind", works, lambda work: work.number == lowest) if 2 * len(behind) <= len(works) else None
    if of_two:
        return _apart(*sorted(works, key=lambda work: work.rank))
    if operation := _rarest(work.operation for work in works):
        return _odd("operation", works, lambda work: work.operation == operation)
    works = [work for work in works if work.operation in _SAME_SIZE and work.elements]
    elements = _rarest(work.elements for work in works)
    is_clear = elements is not None and 2 * sum(work.elements == elements for work in works) < len(works)
    return _odd("size", works, lambda work: work.elements == elements) if is_clear else None


def number_of(text: str) -> int | None:
    """Number of the collective in a line, counted from 1 in its group."""
    match = _WORK.search(text)
    return int(match["number"]) if match else None


def are_of_subgroups(texts: Iterable[str]) -> bool:
    """Whether logs name process groups, but never that of all ranks."""
    groups = {group for text in texts for group in _NAMED_GROUP.findall(text)}
    return bool(groups) and _DEFAULT_GROUP not in groups


def _works_of_one_group(texts: dict[int, str]) -> list[_Work]:
    """Collectives of the process group that most ranks name; each group counts its own."""
    groups: dict[str, list[_Work]] = {}
    for rank, text in texts.items():
        if (match := _WORK.search(text)) is not None:
            group = _GROUP.search(text)
            work = _Work(rank, int(match["number"]), match["operation"], match["elements"] or "")
            groups.setdefault(group[1] if group else "", []).append(work)
    return max(groups.values(), key=len, default=[])


def _apart(first: _Work, second: _Work) -> OddRanks | None:
    """Compare two collectives with the same number; None if they may be the same one."""
    if first.operation != second.operation:
        return OddRanks((second.rank,), "apart", second.name, first.name, first.name)
    have_sizes = first.operation in _SAME_SIZE and first.elements and second.elements
    if not have_sizes or first.elements == second.elements:
        return None
    # torch's own notation.
    second_call, first_call = (f"{work.name} (NumelIn={work.elements})" for work in (second, first))
    return OddRanks((second.rank,), "apart", second_call, first_call, first.name)


def _rarest(values: Iterable[str]) -> str | None:
    counts = Counter(values)
    return min(counts, key=lambda value: (counts[value], value)) if len(counts) > 1 else None


def _odd(kind: str, works: list[_Work], is_odd: Callable[[_Work], bool]) -> OddRanks:
    odd = [work for work in works if is_odd(work)]
    most = Counter((work.name, work.elements) for work in works if not is_odd(work)).most_common(1)[0][0]
    odd_value, usual_value = (odd[0].elements, most[1]) if kind == "size" else (odd[0].name, most[0])
    return OddRanks(tuple(sorted(work.rank for work in odd)), kind, odd_value, usual_value, most[0])
