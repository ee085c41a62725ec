"""Which ranks did not come? A time-out is reported by the ranks that waited; the ranks without one are the cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ascendtune.check.explain import line as lines_of
from ascendtune.check.explain.collectives import OddRanks, number_of, odd_ranks
from ascendtune.check.explain.event import Event
from ascendtune.check.explain.language import say
from ascendtune.check.explain.rank_phase import FINISHED, REMEDIES, SETTING_UP, phase_of, tells_a_step
from ascendtune.check.explain.scan import Scan

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
"""HCCL's root lists the ranks that came to it."""
_MOST_RANKS = 1 << 16
_ENDED = re.compile(r"SIGTERM|SignalException|Traceback \(most|closing signal")
_ENDED_BY_LAUNCHER = re.compile(r"Sending process \d+ closing signal")
_LONGEST_LINE = 160
_SILENT = "silent"
_FEW = 7
"""For so many ranks with lines one without any is believed to have written none."""
_RANKS_OF_A_NODE = 8
"""Most nodes have so many devices, or a multiple: where ranks 0 to 6 wait, rank 7 is believed to be there."""
_MOST_LAST_LINES = 8
"""Missing ranks whose last lines are looked for; of an interleaved log each of them takes a reading of its end."""
_WAIT_LONGER = (
    "give the others time: init_process_group(timeout=timedelta(hours=2)) (ddp_timeout: 7200), HCCL_EXEC_TIMEOUT"
)
_WAITED = ": {count} other ranks waited until the time-out"
_WAITED_ONE = ": 1 other rank waited until the time-out"
_LOST = ": {count} other ranks lost the connection to it"
_LOST_ONE = ": 1 other rank lost the connection to it"
_ODD = {
    "behind": "{ranks} fell behind the others ({theirs}, the others {others})",
    "operation": "{ranks} called another collective than the others ({theirs}, the others {others})",
    "size": "{ranks} gave {operation} another number of elements than the others ({theirs}, the others {others})",
    "apart": "{ranks} called {theirs} where rank {other} called {others}",
}
_LOOK_FOR_DELAY = (
    "what held rank {rank} up before that collective? its last lines (reading data, a checkpoint, compiling), its time "
    "per step beside that of the others, its card and link: `ascendtune devices`"
)
_LOOK_FOR_BRANCHES = (
    "look for code that only some ranks run: a branch on the rank, an `if` on local data, uneven batches"
)
_SAME_COLLECTIVES = "make every rank call the same collectives in the same order and with the same sizes"
_ADD_LOG = "add the log of rank {rank} to those given: its last lines say whether it failed, ended or hangs"
_LOOK_FOR_PROCESS = "check on its host that rank {rank} was started and still runs: `ps -ef | grep train`"
_COMPARE_NODES = "compare --nnodes, --nproc_per_node, --node_rank, MASTER_ADDR and MASTER_PORT on all nodes"
_DUMP_STACKS = "while it hangs, run `py-spy dump --pid PID` on the process of rank {rank}"
_LOOK_FOR_END = (
    "how did its process end? on its host: `dmesg -T | tail -50` (killed for memory, a crash, a lost card), and its "
    "exit code in the launcher's log"
)
_LEFT_EARLY = (
    "it left without an error while the others went on: fewer batches on this rank (a sampler or loader that divides "
    "the rows unevenly: DistributedSampler, drop_last=True), or `break`, `return` or sys.exit on this rank alone"
)
_LOOK_FOR_CRASH = (
    "its own last lines say why; none: `python -X faulthandler` prints where native code crashed, and `dmesg -T | tail "
    "-50` on its host what the kernel ended"
)
_LOOK_FOR_NETWORK = "the process of rank {rank} still runs: the network broke: `ascendtune doctor network`"
_READ_LOG = "read the log of rank {rank} from its last line up"


@dataclass(frozen=True)
class Missing:
    """The ranks that others waited for in vain."""

    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    """Ranks that reported the time-out."""
    world_size: int | None = None
    """As the logs say; None where they do not."""
    first_rank: int = 0
    """The missing rank that is told of: the first one that wrote nothing or did something other than training, else
    the first."""
    last_line: str = ""
    """Its last line; empty when its log has none."""
    where: str = ""
    """File (and line number where the rank has a file of its own) of the last line."""
    phase: str | None = None
    are_alike: bool = True
    """The other missing ranks were doing the same, or wrote nothing either."""
    is_log_given: bool = True
    """False where each rank has a log of its own, and that of the first missing one is not among them."""
    is_under_way: bool = False
    """The ranks had found each other before: they trained, or the collective is not the group's first."""
    is_lost: bool = False
    """The others did not wait until a time-out: their connection broke."""
    exit_code: int | None = None
    """Of the process of the missing rank; None where its launcher does not tell."""
    odd: OddRanks | None = None
    """For ranks that reported the time-out as well, in another collective: which one."""

    @property
    def what(self) -> str:
        one_rank = len(self.ranks) == 1
        names = {
            "ranks": say("rank {rank}", rank=self.ranks[0])
            if one_rank
            else say("ranks {ranks}", ranks=listed(self.ranks)),
            "count": len(self.waiting),
            "phase": say(self.phase or ""),
            "code": self.exit_code,
            "one": say("rank {rank}", rank=self.first_rank),
        }
        one, many = (_LOST_ONE, _LOST) if self.is_lost else (_WAITED_ONE, _WAITED)
        waited = say(one if len(self.waiting) == 1 else many, **names)
        if self.odd is not None:
            odd = self.odd
            names |= {"theirs": odd.theirs, "others": odd.others, "operation": odd.operation, "other": self.waiting[0]}
            return say(_ODD[odd.kind], **names) + ("" if odd.kind == "apart" else waited)
        if self._left_early and self.are_alike:
            return say("{ranks} finished and left", **names) + waited
        if self.exit_code is not None:
            while_phase = self.phase and self.phase != FINISHED
            whole = "{ranks} ended with exit code {code}, while {phase}"
            return say(whole if while_phase else "{ranks} ended with exit code {code}", **names) + waited
        absent = "{ranks} ended, or lost the network" if self.is_lost else "{ranks} did not join"
        if not self.last_line and not self.is_log_given:
            several = " (their logs were not given)" if self.are_alike else " (the log of {one} was not given)"
            return say(absent, **names) + say(" (its log was not given)" if one_rank else several, **names) + waited
        return say(self._sentence(absent), **names) + waited

    def _sentence(self, absent: str) -> str:
        if not self.last_line and not self.are_alike:
            return f"{absent} ({{one}} wrote no line)"
        if not self.last_line:
            return f"{absent}, and wrote no line" if self.is_lost else f"{absent} and wrote no line"
        if not self.phase:
            return absent
        if not self.are_alike:
            return (
                f"{absent} ({{one}} finished and left)"
                if self.phase == FINISHED
                else f"{absent} ({{one}} while {{phase}})"
            )
        return f"{absent}, while {{phase}}" if self.is_lost else f"{absent} while {{phase}}"

    @property
    def _left_early(self) -> bool:
        return self.phase == FINISHED and not self.exit_code

    @property
    def remedies(self) -> tuple[str, ...]:
        rank = self.first_rank
        look_for_end, dump, read_log = say(_LOOK_FOR_END), say(_DUMP_STACKS, rank=rank), say(_READ_LOG, rank=rank)
        if self.odd is not None and self.odd.kind == "behind":
            return (say(_LOOK_FOR_DELAY, rank=rank), dump, say(_WAIT_LONGER))
        if self.odd is not None:
            return (say(_LOOK_FOR_BRANCHES), say(_SAME_COLLECTIVES))
        if self._left_early or self.exit_code is not None:
            return (say(_LOOK_FOR_CRASH) if self.exit_code else say(_LEFT_EARLY), read_log)
        add_log = () if self.is_log_given else (say(_ADD_LOG, rank=rank),)
        if self.is_lost:
            return (*add_log, look_for_end, *(() if add_log else (read_log,)), say(_LOOK_FOR_NETWORK, rank=rank))
        if not self.last_line and self.is_under_way:
            return (*add_log, look_for_end, dump)
        if not self.last_line:
            return (*add_log, say(_LOOK_FOR_PROCESS, rank=rank), say(_COMPARE_NODES))
        if (first := REMEDIES.get(self.phase or "")) and not (self.is_under_way and self.phase == SETTING_UP):
            return (say(first), say(_WAIT_LONGER))
        return (dump, read_log)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "what": self.what}


def waits_among(events: Sequence[Event]) -> list[Event]:
    """The reports of ranks that waited for others.

    A lost connection counts where no rank waited until a time-out: else it was lost to those that gave up, and the one
    that they had waited for loses it, too.
    """
    waits = [event for event in events if event.hit.entry.waits]
    return [event for event in waits if _tells_a_time_out(event)] or waits


def is_one_of_several(wait: Event, events: Sequence[Event]) -> bool:
    """Whether `wait` was reported by one of several ranks that waited: none of them failed first."""
    return wait.hit.entry.waits and len({rank for event in waits_among(events) for rank in event.said_by}) > 1


def awaited(first: Event, fatal: list[Event], scans: Sequence[Scan]) -> Missing | None:
    """Whom the others waited for, where nothing better than their waiting is known."""
    waits = waits_among(fatal)
    cut_off = in_the_same_call(fatal, waits)
    if any(event is first for event in cut_off):
        return find_missing([*waits, *cut_off], scans)
    if not waits or (first.weight == 0 and first.is_known) or (first.is_raised and not first.hit.entry.waits):
        return None
    return find_missing(waits, scans)


def find_missing(waits: Sequence[Event], scans: Sequence[Scan]) -> Missing | None:
    """The ranks that the time-outs `waits` lack, or None when the logs do not tell.

    Ranks that a message names as absent come first, then the one that torchrun saw fail first, where the connection to
    it was lost, then ranks of the job that report no time-out, then ranks that report it in an earlier or another
    collective, then numbers between those of the job that no line is of. Half of the ranks at most can be missing:
    time-outs of a few ranks among many say only that the others were ended first.
    """
    said = {rank: text for event in reversed(waits) for rank, text in event.said_by.items()}
    named = _named(waits)
    size = world_size(scans)
    everyone = set(range(size)) if size and size <= _MOST_RANKS else _ranks_seen(scans) | set(said)
    came = _connected(scans)
    if came and not named:
        everyone |= set(range(max(came)))
        said = {rank: said.get(rank, "") for rank in came}
    is_lost = not any(map(_tells_a_time_out, waits))
    launched = (scan.launcher.rank for scan in scans if scan.launcher is not None)
    failed = sorted({rank for rank in launched if rank is not None and rank not in said} if is_lost else ())
    absent = named or failed or sorted(everyone - set(said))
    waiting = tuple(sorted(set(said) - set(absent)))
    if not waiting:
        return None
    if not (named or failed or 0 < 2 * len(absent) <= len(everyone)):
        another, absent = _in_another_collective(said, size, everyone), [] if absent else _gaps(everyone)
        if another is not None or not absent:
            return another
    is_under_way = _is_under_way(said, scans)
    missing = _told_by_last_lines(
        Missing(tuple(absent), waiting, size, is_lost=is_lost, is_under_way=is_under_way), scans
    )
    return replace(missing, exit_code=_exit_code(missing, scans))


def in_the_same_call(events: Sequence[Event], waits: Sequence[Event]) -> list[Event]:
    """Tracebacks that the log's end cut off, of ranks that were in the call of one of those that waited."""
    calls = [event.trace.frames for event in waits if event.trace is not None and event.trace.frames]
    cut_off = [event for event in events if event.trace is not None and event.trace.frames and not event.trace.type]
    return [
        event
        for event in cut_off
        if event.trace is not None and any(call[: len(event.trace.frames)] == event.trace.frames for call in calls)
    ]


def world_size(scans: Sequence[Scan]) -> int | None:
    """The number of ranks that the logs name; None where they name none, or contradict each other."""
    texts = [text for scan in scans for text in (scan.head, scan.tail)]
    sizes = {
        int(found["size"]) if found["size"] else int(found["peers"]) + 1
        for text in texts
        for found in _WORLD.finditer(text)
    } - {0}
    if not sizes:
        each = {int(found[1]) for text in texts for found in _RANKS_PER_NODE.finditer(text)}
        nodes = {int(found[1]) for text in texts for found in _NODES.finditer(text)} or {1}
        sizes = {one * many for one in each for many in nodes}
    return sizes.pop() if len(sizes) == 1 else None


def _named(waits: Sequence[Event]) -> list[int]:
    lists = [_LIST.findall(event.hit.names.get("missing", "")) for event in waits]
    return sorted({int(rank) for ranks in lists for rank in ranks})


def _tells_a_time_out(event: Event) -> bool:
    """Whether a rank waited as long as it may; its connection broke otherwise."""
    return event.hit.entry.waits and (event.hit.entry.kind != "consequence" or "timed out" in event.text.lower())


def _told_by_last_lines(missing: Missing, scans: Sequence[Scan]) -> Missing:
    """With what the missing ranks were doing, as far as their last lines tell."""
    lines = {rank: _last_line(rank, scans) for rank in missing.ranks[:_MOST_LAST_LINES]}
    phases = {rank: phase_of(line) if line else _SILENT for rank, (_, _, line) in lines.items()}
    # A rank in the usual loop may only have been ended before it could complain.
    telling = (rank for rank, phase in phases.items() if phase in (_SILENT, FINISHED) or phase in REMEDIES)
    rank = next(telling, missing.ranks[0])
    source, number, line = lines[rank]
    where = f"{source}:{number}" if number else source
    return replace(
        missing,
        first_rank=rank,
        last_line=line[:_LONGEST_LINE],
        is_log_given=bool(line) or _is_given(rank, scans),
        where=where if line else "",
        phase=phases[rank] if line else None,
        are_alike=len(set(phases.values())) == 1,
    )


def _is_given(rank: int, scans: Sequence[Scan]) -> bool:
    """Whether the logs are those of the whole job, or one of them is that of `rank`."""
    own = [{scan.rank} if scan.rank is not None else _ranks_seen([scan]) for scan in scans]
    of_one = [ranks for ranks in own if len(ranks) == 1]
    is_by_rank = len(of_one) > 1 or any(scan.rank is not None for scan in scans)
    return not is_by_rank or {rank} in of_one or any(len(ranks) > 1 for ranks in own)


def _is_under_way(said: dict[int, str], scans: Sequence[Scan]) -> bool:
    """Whether the ranks that wait had found each other before; the numbers of their collectives tell most."""
    numbers = [number for text in said.values() if (number := number_of(text)) is not None]
    if numbers:
        return max(numbers) > 1
    return any(tells_a_step(text) for scan in scans for text in (scan.head, scan.tail))


def _exit_code(missing: Missing, scans: Sequence[Scan]) -> int | None:
    """The exit code of the one missing rank, by torchrun's summary; None where that does not tell.

    torchrun lists the ranks that failed, and says which ones it had to end. A rank that is in neither had ended before,
    with exit code 0.
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
    """The ranks that came to HCCL's root, by its list; empty where the logs have none."""
    lists = [found["ranks"] for scan in scans for text in (scan.head, scan.tail) for found in _CONNECTED.finditer(text)]
    return {int(rank) for ranks in lists for rank in _LIST.findall(ranks) if int(rank) < _MOST_RANKS}


def _gaps(seen: set[int]) -> list[int]:
    """The few ranks among those seen that wrote nothing; of many, or in an excerpt, the lines may lie elsewhere.

    Ranks begin with 0. Where none is missing before the last one seen, and this is not the last of a node, the next is.
    """
    count = max(seen, default=-1) + 1
    gaps = sorted(set(range(count)) - seen)
    if not gaps and (count + 1) % _RANKS_OF_A_NODE == 0:
        gaps = [count]
    return gaps if len(gaps) <= len(seen) // _FEW else []


def _ranks_seen(scans: Sequence[Scan]) -> set[int]:
    own = {scan.rank for scan in scans if scan.rank is not None}
    inside = {line.rank for scan in scans if scan.rank is None for line in _lines(scan) if line.rank is not None}
    return own | inside


def _lines(scan: Scan) -> Iterable[lines_of.Line]:
    texts = (text for part in (scan.head, scan.tail) for text in part.splitlines())
    # A bar of one rank does not end its line: that of another one stands behind it.
    return (lines_of.read(each) for text in texts for each in (lines_of.bar_in(text), text) if each)


def _last_line(rank: int, scans: Sequence[Scan]) -> tuple[str, int | None, str]:
    """(file, line number, text) of the last line of a rank before it was told to end."""
    for scan in scans:
        if scan.rank == rank:
            texts = scan.tail.splitlines()
            end = next((index for index, text in enumerate(texts) if _ENDED.search(text)), len(texts))
            for index in range(end - 1, -1, -1):
                if texts[index].strip():
                    return scan.name, scan.lines - (len(texts) - 1 - index), lines_of.read(texts[index]).said.strip()
    for scan in scans:
        if scan.rank is None:
            mine = [line.said.strip() for line in _lines(scan) if line.rank == rank and line.said.strip()]
            end = next((index for index, text in enumerate(mine) if _ENDED.search(text)), len(mine))
            if mine[:end]:
                return scan.name, None, mine[end - 1]
    return "", None, ""


def _in_another_collective(said: dict[int, str], size: int | None, everyone: set[int]) -> Missing | None:
    odd = odd_ranks(said, of_two=everyone == {0, 1})
    if odd is None:
        return None
    others = tuple(sorted(set(said) - set(odd.ranks)))
    return Missing(odd.ranks, others, size, min(odd.ranks), odd=odd)


def listed(ranks: Sequence[int]) -> str:
    """1-3, 5 for 1, 2, 3, 5."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
