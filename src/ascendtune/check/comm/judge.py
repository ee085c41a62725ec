"""Findings of `comm test`, from the notes of all ranks: one per collective, with the rank or link at fault."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ascendtune.check.comm.collective import BARRIER
from ascendtune.check.comm.notes import RankNotes
from ascendtune.check.comm.start import RankGroup, RankResults
from ascendtune.check.finding import Finding, failure, ok, unknown
from ascendtune.core.units import count_of

Cells = Mapping[int, Mapping[str, Any]]
"""Rank -> its cell, of one collective and one dtype."""
_SHOWN = 6
_TYPE_NAME = re.compile(r"(?<![: ])[: ]*at::[\w:/]+")
"""C++ type names in messages of torch_npu, removed so that dtypes with the same reason are grouped."""


def judge(ran: RankResults, collectives: Sequence[str], timeout_seconds: float) -> list[Finding]:
    """A finding for each collective; before them, one on missing ranks if there are any."""
    table = _by_collective(ran)
    findings = [] if ran.is_whole else [unfinished_finding(ran, timeout_seconds)]
    for name in collectives:
        cells = table.get(name, {})
        if name == BARRIER and cells:
            findings.append(_barrier_finding(ran.ranks, next(iter(cells.values()))))
        elif cells:
            findings.append(_collective_finding(ran, name, cells))
        else:
            findings.append(unknown(name, "not run"))
    return findings


def results(ran: RankResults) -> list[dict[str, Any]]:
    """Results for JSON: each collective and dtype, with the values that each rank received."""
    return [
        {
            "collective": name,
            "dtype": dtype or None,
            "ranks": [
                {"rank": rank} | {key: value for key, value in cell.items() if key not in ("collective", "dtype")}
                for rank, cell in sorted(cells.items())
            ],
        }
        for name, dtypes in _by_collective(ran).items()
        for dtype, cells in dtypes.items()
    ]


def verdict(ran: RankResults, findings: Sequence[Finding]) -> str:
    """One sentence that summarises all findings."""
    summary = f"{count_of(ran.ranks.count, 'rank')} over {ran.backend}"
    if not ran.is_whole:
        return f"{summary}: not every rank finished"
    bad = [finding.code for finding in findings if finding.status == "failure"]
    if bad:
        return f"{summary}: wrong in {', '.join(bad)}"
    right = sum(finding.status == "ok" for finding in findings)
    return (
        f"{summary}: {right} of {count_of(len(findings), 'collective is', 'collectives are')} right, element by element"
    )


def _by_collective(ran: RankResults) -> dict[str, dict[str, Cells]]:
    """Collective -> dtype -> cells, for those that every rank has finished."""
    table: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for each in ran.notes:
        for cell in each.of("cell"):
            table.setdefault(cell["collective"], {}).setdefault(cell["dtype"] or "", {})[each.rank] = cell
    whole = {
        name: {dtype: cells for dtype, cells in dtypes.items() if len(cells) == ran.ranks.count}
        for name, dtypes in table.items()
    }
    return {name: dict(dtypes) for name, dtypes in whole.items() if dtypes}


def _collective_finding(ran: RankResults, name: str, dtypes: Mapping[str, Cells]) -> Finding:
    tried = {dtype: cells for dtype, cells in dtypes.items() if all("parts" in cell for cell in cells.values())}
    faults = {dtype: text for dtype, cells in tried.items() if (text := describe_wrong_values(cells, ran.ranks.labels))}
    left_out = _reasons(f"{ran.backend} refuses", "refused", dtypes) + _reasons("not tried:", "untried", dtypes)
    if faults:
        return failure(
            name,
            "; ".join(f"{text} ({', '.join(of)})" for text, of in _grouped(faults.items()).items()),
            expected="every element has the value computed from the values of all ranks",
            remedy="take the named device or link out of use, check its health, and test again",
            evidence=tuple(_first_wrong(ran.ranks, {dtype: tried[dtype] for dtype in faults})),
        )
    if not tried:
        return unknown(name, "; ".join(left_out) or "not run")
    return ok(name, "; ".join([f"right in {', '.join(tried)}", *left_out]))


def _reasons(outcome: str, key: str, dtypes: Mapping[str, Cells]) -> list[str]:
    text = {
        dtype: _TYPE_NAME.sub("", cell[key])
        for dtype, cells in dtypes.items()
        for cell in cells.values()
        if key in cell
    }
    return [f"{outcome} {', '.join(of)} ({why})" for why, of in _grouped(text.items()).items()]


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Sentence -> the dtypes that it applies to."""
    grouped: dict[str, list[str]] = {}
    for dtype, text in pairs:
        grouped.setdefault(text, []).append(dtype)
    return grouped


def _first_wrong(ranks: RankGroup, dtypes: Mapping[str, Cells]) -> list[str]:
    lines = [
        f"{ranks.label(rank)}, {dtype}: {part['wrong']:,} of {part['elements']:,} elements"
        + ("" if part["from"] is None else f" from rank {part['from']}")
        + f"; element "
        f"{part['first_wrong']['element']} is {part['first_wrong']['seen']}, not {part['first_wrong']['expected']}"
        for dtype, cells in dtypes.items()
        for rank, cell in sorted(cells.items())
        for part in cell["parts"]
        if part["wrong"]
    ]
    more = len(lines) - _SHOWN
    return lines if more <= 0 else [*lines[:_SHOWN], f"and {more} more; --json prints all"]


def _barrier_finding(ranks: RankGroup, dtypes: Cells) -> Finding:
    early = {rank: cell["missed"] for rank, cell in dtypes.items() if cell["missed"]}
    if not early:
        return ok(BARRIER, "no rank leaves before the last one has arrived")
    return failure(
        BARRIER,
        "; ".join(f"{ranks.label(rank)} did not wait for {ranks.labels(missed)}" for rank, missed in early.items()),
        expected="no rank leaves before the last one has arrived",
        remedy="do not rely on barriers of this backend; check its version with `ascendtune doctor versions`",
    )


Label = Callable[[Sequence[int]], str]


def describe_wrong_values(cells: Mapping[int, Mapping[str, Any]], label: Label) -> str | None:
    """One sentence on the cells of one collective and dtype, by rank; None if all values are right.

    Args:
        label: formats ranks for messages.
    """
    all_links = {(part["from"], rank) for rank, cell in cells.items() for part in cell["parts"]}
    wrong = {(part["from"], rank) for rank, cell in cells.items() for part in cell["parts"] if part["wrong"]}
    if not wrong:
        return None
    if any(source is None for source, _ in wrong):
        return _wrong_sums({rank for _, rank in wrong}, cells, label)
    senders = _always_wrong(all_links, wrong, lambda way: way[0])
    receivers = _always_wrong(all_links, wrong, lambda way: way[1])
    if wrong == all_links and len(all_links) > 1:
        return f"every value is wrong, on {label(sorted(cells))}"
    if senders and all(source in senders for source, _ in wrong):
        return f"values sent by {label(senders)} are wrong on every receiver"
    if receivers and all(rank in receivers for _, rank in wrong):
        return f"{label(receivers)} receives wrong values from every sender"
    links = [f"from {label([source])} to {label([rank])}" for source, rank in sorted(wrong)]
    return f"wrong values {', '.join(links)}"


def _always_wrong(all_links: Iterable[Any], wrong_links: Iterable[Any], end: Callable[[Any], int]) -> list[int]:
    """Ranks at one end of links that are all wrong; at least two links, or the other end could be at fault."""
    ends, wrong_ends = list(map(end, all_links)), list(map(end, wrong_links))
    return sorted(rank for rank in set(wrong_ends) if wrong_ends.count(rank) == ends.count(rank) > 1)


def _wrong_sums(wrong: set[int], cells: Mapping[int, Mapping[str, Any]], label: Label) -> str:
    if wrong != set(cells):
        return f"{label(sorted(wrong))} has wrong sums, the other ranks have right ones"
    groups = [(set(each["group"]), each["wrong"] > 0) for each in next(iter(cells.values())).get("isolated", ())]
    bad = [members for members, is_wrong in groups if is_wrong]
    suspects = sorted(rank for rank in cells if all(is_wrong for members, is_wrong in groups if rank in members))
    if groups and not bad:
        return "the sums are wrong on every rank, and right in groups of two: no single rank is at fault"
    if len(groups) > 2 and len(bad) == 1:
        return f"the sums are wrong between {label(sorted(bad[0]))}, and right in the other groups of two"
    if groups and suspects and len(suspects) < len(cells):
        return f"{label(suspects)} makes the sums wrong: without it they are right"
    return f"the sums are wrong on every rank: {label(sorted(cells))}"


RANKS = "ranks"


def unfinished_finding(ran: RankResults, timeout_seconds: float) -> Finding:
    """The finding for a run in which at least one rank did not finish.

    It reports the first of these that exists: a rank that failed with an error of its own; a rank that others waited
    for; a rank that exited, or was killed, without an error message. Ranks that only lost a connection are not
    reported.
    """
    failed = [each for each in ran.notes if each.last("error") and not each.is_echo]
    if failed:
        return _rank_failure(ran, failed, f"failed at {failed[0].last('at')}: {failed[0].last('error')}")
    absent = sorted({rank for each in ran.notes for rank in each.last("absent") or ()})
    if absent:
        waiting = next(each for each in ran.notes if each.last("absent"))
        at, last = waiting.last("at"), ran.notes[absent[0]].last("at")
        waited = f"{at}: {ran.ranks.label(waiting.rank)} waited {timeout_seconds:g} s"
        before = f"it was last at {last}" if last else "it wrote no notes"
        event = f"did not return from {waited}" if last == at else f"never reached {waited}; {before}"
        return _rank_failure(ran, [ran.notes[rank] for rank in absent], event)
    silent = [each for each in ran.notes if not each.is_done and not each.last("error")]
    if silent:
        return _silent_finding(ran, silent)
    lost = next(each for each in ran.notes if each.last("error"))
    everyone = ran.ranks.labels(range(ran.ranks.count))
    return failure(
        RANKS,
        f"{everyone} lost the connections to each other at {lost.last('at')}: {lost.last('error')}",
        expected="every rank can connect to every other",
        remedy="check the link and the interface that the backend uses: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME "
        "or HCCL_SOCKET_IFNAME",
        evidence=_evidence(ran, ran.notes),
    )


def _silent_finding(ran: RankResults, silent: Sequence[RankNotes]) -> Finding:
    furthest_behind = min(len(each.notes) for each in silent)
    ranks = [each for each in silent if len(each.notes) == furthest_behind]
    failure = ran.outcome.failure
    # The launcher reports the rank that it saw exiting first. NCCL aborts ranks that wait for another one, though: then
    # the first to exit is not the one that is behind.
    dead = [each for each in ranks if failure is not None and failure.ending and each.rank == failure.rank]
    if failure is not None and dead:
        return _rank_failure(ran, dead, f"{failure.ending} at {dead[0].last('at') or 'its start'}")
    return _rank_failure(ran, ranks, f"did not return from {ranks[0].last('at') or 'its start'}")


def _rank_failure(ran: RankResults, faulty: Sequence[RankNotes], event: str) -> Finding:
    log = ran.log(faulty[0].rank)
    if log is None:
        look = "see the messages above, which are those of rank 0"
    else:
        look = f"ascendtune explain {shlex.quote(str(log))}" if _last_line(log) else f"its log is empty ({log})"
    return failure(
        RANKS,
        f"{ran.ranks.labels([each.rank for each in faulty])} {event}",
        expected="every rank finishes",
        remedy=f"{look}; check its device and its links with `ascendtune doctor --deep`",
        evidence=_evidence(ran, faulty),
    )


def _evidence(ran: RankResults, faulty: Sequence[RankNotes]) -> tuple[str, ...]:
    logs = [log for each in faulty if (log := ran.log(each.rank))]
    return tuple(f"{log}: {text}" for log in logs if (text := _last_line(log)))


def _last_line(log: Path) -> str:
    """The last line of a log that is not blank; empty if the log has none."""
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
