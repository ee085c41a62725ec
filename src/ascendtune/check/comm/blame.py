"""Which rank or link is at fault, from which parts of which buffers were wrong on which ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Label = Callable[[Sequence[int]], str]


def blame(cells: Mapping[int, Mapping[str, Any]], label: Label) -> str | None:
    """One sentence on the cells of one collective and dtype, by rank; None where nothing is wrong.

    Args:
        label: ranks as messages call them.
    """
    seen = {(part["from"], rank) for rank, cell in cells.items() for part in cell["parts"]}
    wrong = {(part["from"], rank) for rank, cell in cells.items() for part in cell["parts"] if part["wrong"]}
    if not wrong:
        return None
    if any(source is None for source, _ in wrong):
        return _of_sums({rank for _, rank in wrong}, cells, label)
    senders = _always_wrong(seen, wrong, lambda way: way[0])
    receivers = _always_wrong(seen, wrong, lambda way: way[1])
    if wrong == seen and len(seen) > 1:
        return f"every value is wrong, on {label(sorted(cells))}"
    if senders and all(source in senders for source, _ in wrong):
        return f"what {label(senders)} sends arrives wrong everywhere"
    if receivers and all(rank in receivers for _, rank in wrong):
        return f"{label(receivers)} gets everything wrong"
    ways = [f"from {label([source])} to {label([rank])}" for source, rank in sorted(wrong)]
    return f"wrong on the way {', '.join(ways)}"


def _always_wrong(seen: Iterable[Any], wrong: Iterable[Any], end: Callable[[Any], int]) -> list[int]:
    """Ranks at one end of ways that are all wrong; two ways at least, or it could be the other end."""
    all_ways, bad_ways = list(map(end, seen)), list(map(end, wrong))
    return sorted(rank for rank in set(bad_ways) if bad_ways.count(rank) == all_ways.count(rank) > 1)


def _of_sums(wrong: set[int], cells: Mapping[int, Mapping[str, Any]], label: Label) -> str:
    if wrong != set(cells):
        return f"{label(sorted(wrong))} gets wrong sums, the others right ones"
    groups = [(set(each["group"]), each["wrong"] > 0) for each in next(iter(cells.values())).get("isolated", ())]
    bad = [members for members, is_wrong in groups if is_wrong]
    suspects = sorted(rank for rank in cells if all(is_wrong for members, is_wrong in groups if rank in members))
    if groups and not bad:
        return "the sums are wrong on every rank, and right in groups of two: none of them is wrong alone"
    if len(groups) > 2 and len(bad) == 1:
        return f"the sums are wrong between {label(sorted(bad[0]))}, and right in other groups of two"
    if groups and suspects and len(suspects) < len(cells):
        return f"{label(suspects)} spoils the sums: without it they are right"
    return f"the sums are wrong on every rank: {label(sorted(cells))}"
