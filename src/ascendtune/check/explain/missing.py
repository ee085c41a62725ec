"""Which ranks did not come? A time-out is reported by the ranks that waited; the ranks without one are the cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ascendtune.check.explain import line as lines_of
from ascendtune.check.explain.collectives import OddRanks, odd_ranks
from ascendtune.check.explain.event import Event
from ascendtune.check.explain.language import say
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
_PHASES = (
    (
        "preparing data",
        re.compile(r"token(?:iz|is)|\bMap(?:\s*\(|:)|preprocess|Generating train split|packing|Grouping texts", re.I),
    ),
    ("saving a checkpoint", re.compile(r"sav(?:e|ing)\b.*(?:checkpoint|model|optimizer|state)|checkpoint.*sav", re.I)),
    ("loading the model", re.compile(r"load(?:ing)?\b.*(?:checkpoint|weights|shards|model|safetensors)", re.I)),
    ("compiling", re.compile(r"compil|building extension|ninja|\bTBE\b|triton.*cache", re.I)),
    ("evaluating", re.compile(r"\beval|\bvalidat|\bgenerat(?:e|ing)\b", re.I)),
    ("downloading", re.compile(r"download|fetching \d+ files", re.I)),
    (
        "setting up the process group",
        re.compile(r"init_process_group|rendezvous|communicator|initializ.*distrib", re.I),
    ),
    ("reading data", re.compile(r"data ?loader|\bdataset\b|reading", re.I)),
    ("training", re.compile(r"\bloss\b|\bstep\b|\bit/s\b|\bepoch\b", re.I)),
)
_WAIT_LONGER = (
    "give the others time: init_process_group(timeout=timedelta(hours=2)) (ddp_timeout: 7200), HCCL_EXEC_TIMEOUT"
)
_REMEDIES = {
    "preparing data": "tokenise before the job starts: `ascendtune train RECIPE --prepare`",
    "saving a checkpoint": "save to a faster disk, or in shards from every rank",
    "loading the model": "load from a local disk, or on one rank a node at a time",
    "compiling": "build kernels once before the job starts, and share their cache directory",
    "evaluating": "evaluate on every rank, or end evaluation with a barrier that all ranks reach",
    "downloading": "download before the job starts: `ascendtune fetch`, HF_HUB_OFFLINE=1",
    "setting up the process group": "check that every rank uses the same MASTER_ADDR, MASTER_PORT and world size",
}
_WAITED = ": {count} other ranks waited until the time-out"
_WAITED_ONE = ": 1 other rank waited until the time-out"
_LOST = ": {count} other ranks lost the connection to it"
_LOST_ONE = ": 1 other rank lost the connection to it"
_ODD = {
    "behind": "{ranks} fell behind the others ({pair})",
    "operation": "{ranks} called another collective than the others ({pair})",
    "size": "{ranks} called {operation} with another number of elements than the others ({pair})",
}
_LOOK_FOR_DELAY = (
    "what held rank {rank} up before that collective? its last lines (reading data, a checkpoint, compiling), its time "
    "per step beside that of the others, its card and link: `ascendtune devices`"
)
_LOOK_FOR_BRANCHES = (
    "look for code that only some ranks run: a branch on the rank, an `if` on local data, uneven batches"
)
_SAME_COLLECTIVES = "make every rank call the same collectives in the same order and with the same sizes"
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
    is_lost: bool = False
    """The others did not wait until a time-out: their connection broke."""
    exit_code: int | None = None
    """Of the process of the missing rank; None where its launcher does not tell."""
    odd: OddRanks | None = None
    """For ranks that reported the time-out as well, in another collective: which one."""

    @property
    def what(self) -> str:
        names = {
            "ranks": say("rank {rank}", rank=self.ranks[0])
            if len(self.ranks) == 1
            else say("ranks {ranks}", ranks=listed(self.ranks)),
            "count": len(self.waiting),
            "phase": say(self.phase or ""),
            "code": self.exit_code,
            "one": say("rank {rank}", rank=self.first_rank),
        }
        one, many = (_LOST_ONE, _LOST) if self.is_lost else (_WAITED_ONE, _WAITED)
        waited = say(one if len(self.waiting) == 1 else many, **names)
        if self.odd is not None:
            pair = say("{operation}, the others {others}", operation=self.odd.theirs, others=self.odd.others)
            return say(_ODD[self.odd.kind], **names, pair=pair, operation=self.odd.operation) + waited
        return say(self._sentence(), **names) + waited

    def _sentence(self) -> str:
        if self.exit_code is not None:
            whole = "{ranks} ended with exit code {code}, while {phase}"
            return whole if self.phase else "{ranks} ended with exit code {code}"
        if not self.last_line and not self.are_alike:
            several = "{ranks} ended, or lost the network ({one} wrote no line)"
            return several if self.is_lost else "{ranks} did not join ({one} wrote no line)"
        if not self.last_line:
            silent = "{ranks} ended, or lost the network, and wrote no line"
            return silent if self.is_lost else "{ranks} did not join and wrote no line"
        if not self.phase:
            return "{ranks} ended, or lost the network" if self.is_lost else "{ranks} did not join"
        if not self.are_alike:
            several = "{ranks} ended, or lost the network ({one} while {phase})"
            return several if self.is_lost else "{ranks} did not join ({one} while {phase})"
        alike = "{ranks} ended, or lost the network, while {phase}"
        return alike if self.is_lost else "{ranks} did not join while {phase}"

    @property
    def remedies(self) -> tuple[str, ...]:
        if self.odd is not None and self.odd.kind == "behind":
            rank = self.first_rank
            return (say(_LOOK_FOR_DELAY, rank=rank), say(_DUMP_STACKS, rank=rank), say(_WAIT_LONGER))
        if self.odd is not None:
            return (say(_LOOK_FOR_BRANCHES), say(_SAME_COLLECTIVES))
        if self.exit_code is not None:
            ended = say(_LOOK_FOR_CRASH) if self.exit_code else say(_LEFT_EARLY)
            return (ended, say(_READ_LOG, rank=self.first_rank))
        if self.is_lost:
            rank = self.first_rank
            return (say(_LOOK_FOR_END), say(_READ_LOG, rank=rank), say(_LOOK_FOR_NETWORK, rank=rank))
        if not self.last_line:
            return (say(_LOOK_FOR_PROCESS, rank=self.first_rank), say(_COMPARE_NODES))
        if first := _REMEDIES.get(self.phase or ""):
            return (say(first), say(_WAIT_LONGER))
        return (say(_DUMP_STACKS, rank=self.first_rank), say(_READ_LOG, rank=self.first_rank))

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
        another, absent = _in_another_collective(said, size), [] if absent else _gaps(everyone)
        if another is not None or not absent:
            return another
    missing = _told_by_last_lines(Missing(tuple(absent), waiting, size, is_lost=is_lost), scans)
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


def phase_of(text: str) -> str | None:
    """What a rank was doing when it wrote `text`, as far as its words tell."""
    return next((phase for phase, pattern in _PHASES if pattern.search(text)), None)


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
    telling = (rank for rank, phase in phases.items() if phase == _SILENT or phase in _REMEDIES)
    rank = next(telling, missing.ranks[0])
    source, number, line = lines[rank]
    where = f"{source}:{number}" if number else source
    return replace(
        missing,
        first_rank=rank,
        last_line=line[:_LONGEST_LINE],
        where=where if line else "",
        phase=phases[rank] if line else None,
        are_alike=len(set(phases.values())) == 1,
    )


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


def _in_another_collective(said: dict[int, str], size: int | None) -> Missing | None:
    odd = odd_ranks(said)
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
