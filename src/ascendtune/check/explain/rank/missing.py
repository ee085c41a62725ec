"""Finds the missing ranks: a time-out is reported by the ranks that waited; the ranks without one are the cause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.scan import Scan, texts_of
from ascendtune.check.explain.rank.collectives import are_of_subgroups, number_of, odd_ranks
from ascendtune.check.explain.rank.missing_report import LastLine, Missing
from ascendtune.check.explain.rank.rank_lines import Ranks
from ascendtune.check.explain.rank.rank_phase import FINISHED, REMEDIES, phase_of, tells_a_step

_WORLD = re.compile(
    r"(?:\b(?:dist_)?(?:world[ _]?size|WORLD_SIZE|nranks|numRanks|nRanks|rankNum|rank_size)\W{1,4}|"
    r"\b(?:num_processes|Num processes)[=: ]{1,3}|\d/(?=\d+ clients joined))(?P<size>\d{1,5})\b(?!\.)|"
    r"\bis connected to (?P<peers>\d{1,5}) peer ranks\b"
)
_RANKS_PER_NODE = re.compile(
    r"(?:\bnproc[_-]per[_-]node|\bNPROC_PER_NODE|--num_gpus|\bnum_local_procs) {0,8}[=: ] ?(\d{1,3})\b"
)
_NODES = re.compile(r"\b(?:nnodes|NNODES|max_nodes|num_nodes) {0,8}[=: ] ?(\d{1,4})\b")
_LIST = re.compile(r"\d+")
_CONNECTED = re.compile(r"\]connected rankinfo\[LINE \d+\]: ?(?P<ranks>(?:\[\d+\],?)+)")
"""List of the ranks that connected to HCCL's root."""
_MOST_RANKS = 1 << 16
_ENDED_BY_LAUNCHER = re.compile(r"Sending process \d+ closing signal")
_LONGEST_LINE = 160
_SILENT = "silent"
_FEW = 7
"""For this many ranks with lines, one rank without lines is believed to have written none."""
_RANKS_OF_A_NODE = 8
"""Most nodes have this number of devices, or a multiple: if ranks 0 to 6 wait, rank 7 is believed to exist."""
_MOST_LAST_LINES = 8
"""Most missing ranks whose last lines are reported."""
_TASK = "task"
"""Captured name for the activity of a rank, in a line without a rank."""
_ENCLOSED = 3
"""Fewest waiting ranks on both sides of a gap together, for each rank in it."""


def waits_among(events: Sequence[Event]) -> list[Event]:
    """Reports of ranks that waited for others.

    A lost connection counts only if no rank waited until a time-out. Otherwise the ranks that timed out closed it, and
    the rank that they had waited for loses it as well.
    """
    waits = [event for event in events if event.entry.waits]
    return [event for event in waits if _tells_a_time_out(event)] or waits


def is_one_of_several(wait: Event, events: Sequence[Event]) -> bool:
    """Whether `wait` is the report of one of several waiting ranks: none of them failed first."""
    return wait.entry.waits and len({rank for event in waits_among(events) for rank in event.text_by_rank}) > 1


def awaited(first: Event, fatal: list[Event], ranks: Ranks) -> Missing | None:
    """Ranks that the others waited for, if nothing but their waiting is known."""
    waits = waits_among(fatal)
    cut_off = in_the_same_call(fatal, waits)
    if any(event is first for event in cut_off):
        return find_missing([*waits, *cut_off], ranks)
    is_wait = first.entry.waits
    if not waits or (not is_wait and ((first.weight == 0 and first.is_known) or first.is_raised)):
        return None
    missing = find_missing(waits, ranks)
    if missing is not None and not missing.last_line and _TASK in first.hit.names and not missing.are_lines_told_apart:
        # The activity comes from a line without a rank: nothing more is known of the missing rank.
        return None
    return missing


def find_missing(waits: Sequence[Event], ranks: Ranks) -> Missing | None:
    """Ranks that the time-outs `waits` lack, or None if the logs do not show them.

    Ranks that a message names as absent come first; then the one that failed first by torchrun's summary, if the
    connection to it was lost; then ranks of the job without a time-out; then ranks with a time-out in an earlier or
    another collective; then numbers among those of the job without any line. At most half of the ranks can be missing:
    time-outs of a few ranks among many show only that the others were ended first.
    """
    scans = ranks.scans
    texts = {rank: text for event in reversed(waits) for rank, text in event.text_by_rank.items()}
    named = _named(waits)
    size = world_size(scans)
    everyone = set(range(size)) if size and size <= _MOST_RANKS else ranks.seen() | set(texts)
    came = _connected(scans)
    if came and not named:
        everyone |= set(range(max(came)))
        texts = {rank: texts.get(rank, "") for rank in came}
    is_lost = not any(map(_tells_a_time_out, waits))
    launched = (scan.launcher.rank for scan in scans if scan.launcher is not None)
    failed = sorted({rank for rank in launched if rank is not None and rank not in texts} if is_lost else ())
    absent = named or failed or sorted(everyone - set(texts))
    waiting = tuple(sorted(set(texts) - set(absent)))
    if not waiting:
        return None
    if not (named or failed or 0 < 2 * len(absent) <= len(everyone)):
        another = _in_another_collective(texts, size, everyone)
        if another is not None:
            return another
        are_of_one_group = not absent or are_of_subgroups(texts_of(scans))
        absent = ([] if absent else _gaps(everyone)) or (
            _enclosed(waiting, of_job=not absent) if are_of_one_group else []
        )
        if not absent:
            return None
    elif size is None and not (named or failed):
        # A rank without any line is missing as well.
        unseen = {*absent, *_enclosed(sorted(everyone), of_job=True)}
        absent = sorted(unseen) if _ENCLOSED * len(unseen) <= len(waiting) else absent
    is_under_way = _is_under_way(texts, scans)
    missing = _told_by_last_lines(
        Missing(tuple(absent), waiting, size, is_lost=is_lost, is_under_way=is_under_way), ranks
    )
    return replace(missing, exit_code=_exit_code(missing, scans))


def in_the_same_call(events: Sequence[Event], waits: Sequence[Event]) -> list[Event]:
    """Tracebacks cut off by the end of the log, of ranks in the same call as one that waited."""
    calls = [event.trace.frames for event in waits if event.trace is not None and event.trace.frames]
    cut_off = [event for event in events if event.trace is not None and event.trace.frames and not event.trace.type]
    return [
        event
        for event in cut_off
        if event.trace is not None and any(call[: len(event.trace.frames)] == event.trace.frames for call in calls)
    ]


def world_size(scans: Sequence[Scan]) -> int | None:
    """Number of ranks in the logs; None if it is not there, or the logs contradict each other."""
    texts = texts_of(scans)
    sizes = {
        int(match["size"]) if match["size"] else int(match["peers"]) + 1
        for text in texts
        for match in _WORLD.finditer(text)
    } - {0}
    if not sizes:
        each = {int(match[1]) for text in texts for match in _RANKS_PER_NODE.finditer(text)}
        nodes = {int(match[1]) for text in texts for match in _NODES.finditer(text)} or {1}
        sizes = {one * many for one in each for many in nodes}
    return sizes.pop() if len(sizes) == 1 else None


def _named(waits: Sequence[Event]) -> list[int]:
    lists = [_LIST.findall(event.hit.names.get("missing", "")) for event in waits]
    return sorted({int(rank) for ranks in lists for rank in ranks})


def _tells_a_time_out(event: Event) -> bool:
    """Whether a rank waited until its time-out, rather than losing its connection."""
    return event.entry.waits and (event.entry.kind != "consequence" or "timed out" in event.text.lower())


def _told_by_last_lines(missing: Missing, ranks: Ranks) -> Missing:
    """Add the activity of the missing ranks, as far as their last lines show it."""
    lines = tuple(_last_line(rank, ranks) for rank in missing.ranks[:_MOST_LAST_LINES])
    phases = [line.phase if line.text else _SILENT for line in lines]
    # A rank in the training loop may only have been ended before its own time-out.
    telling = (
        line for line, phase in zip(lines, phases, strict=True) if phase in (_SILENT, FINISHED) or phase in REMEDIES
    )
    shown = next(telling, lines[0])
    return replace(
        missing,
        first_rank=shown.rank,
        last_line=shown.text,
        is_log_given=bool(shown.text) or ranks.is_given(shown.rank),
        are_lines_told_apart=bool(shown.text) or ranks.are_lines_told_apart(shown.rank, missing.waiting),
        where=shown.where,
        phase=shown.phase,
        are_alike=len(set(phases)) == 1,
        last_lines=lines,
    )


def _last_line(rank: int, ranks: Ranks) -> LastLine:
    source, number, text = ranks.last_line(rank)
    return LastLine(rank, text[:_LONGEST_LINE], f"{source}:{number}" if text else "", phase_of(text) if text else None)


def _is_under_way(texts: dict[int, str], scans: Sequence[Scan]) -> bool:
    """Whether the waiting ranks had connected before, by the numbers of their collectives, else by the logs."""
    numbers = [number for text in texts.values() if (number := number_of(text)) is not None]
    if numbers:
        return max(numbers) > 1
    return any(map(tells_a_step, texts_of(scans)))


def _exit_code(missing: Missing, scans: Sequence[Scan]) -> int | None:
    """Exit code of the missing rank, by torchrun's summary; None if several are missing, or it does not follow.

    torchrun lists the ranks that failed, and logs those that it ended. A rank in neither list had ended before, with
    exit code 0.
    """
    launchers = [(scan, scan.launcher) for scan in scans if scan.launcher is not None]
    if len(missing.ranks) != 1 or len(launchers) != 1:
        return None
    (scan, launcher), rank = launchers[0], missing.ranks[0]
    if rank == launcher.rank:
        return launcher.exit_code
    wrote_there = bool(missing.last_line) and f"{missing.where}:".startswith(f"{scan.name}:")
    if rank in launcher.failed or not (wrote_there or rank < max(launcher.failed, default=-1)):
        return None
    ended = len(launcher.failed) + len(_ENDED_BY_LAUNCHER.findall(scan.tail))
    return 0 if ended + 1 == (missing.world_size or len(missing.waiting) + 1) else None


def _connected(scans: Sequence[Scan]) -> set[int]:
    """Ranks that connected to HCCL's root, by its list; empty if the logs have none."""
    lists = [match["ranks"] for text in texts_of(scans) for match in _CONNECTED.finditer(text)]
    return {int(rank) for ranks in lists for rank in _LIST.findall(ranks) if int(rank) < _MOST_RANKS}


def _gaps(seen: set[int]) -> list[int]:
    """Ranks that wrote nothing, if they are few compared with those seen; else their lines may be in other logs.

    Ranks begin with 0. If none is missing before the last one seen, and all but one of a node were seen, the next one
    is missing.
    """
    count = max(seen, default=-1) + 1
    gaps = sorted(set(range(count)) - seen)
    if not gaps and (count + 1) % _RANKS_OF_A_NODE == 0:
        gaps = [count]
    return gaps if len(gaps) <= len(seen) // _FEW else []


def _enclosed(seen: Sequence[int], *, of_job: bool) -> list[int]:
    """Ranks below the last one seen that were not seen, such as those of a node; none if they are too many: the ranks
    may not be in one group.

    Args:
        of_job: whether the ranks begin with 0, and not with the first one of a process group.
    """
    gap = sorted(set(range(0 if of_job else min(seen), max(seen))) - set(seen))
    return gap if _ENCLOSED * len(gap) <= len(seen) else []


def _in_another_collective(texts: dict[int, str], size: int | None, everyone: set[int]) -> Missing | None:
    odd = odd_ranks(texts, of_two=everyone == {0, 1})
    if odd is None:
        return None
    others = tuple(sorted(set(texts) - set(odd.ranks)))
    return Missing(odd.ranks, others, size, min(odd.ranks), odd=odd)
