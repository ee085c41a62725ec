"""Report on missing ranks: headline and remedies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ascendtune.check.explain.language import say
from ascendtune.check.explain.rank.collectives import OddRanks
from ascendtune.check.explain.rank.rank_phase import FINISHED, REMEDIES, SETTING_UP

_WAIT_LONGER = (
    "give the others time: init_process_group(timeout=timedelta(hours=2)) (ddp_timeout: 7200), HCCL_EXEC_TIMEOUT"
)
_WAITED = ": {count} other {count:rank|ranks} waited until the time-out"
_LOST = ": {count} other {count:rank|ranks} lost the connection to it"
_ODD = {
    "behind": "{ranks} fell behind the others ({theirs}, the others {others})",
    "behind-one": "{ranks} fell behind the other ({theirs}, the other {others})",
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
_LABEL_LINES = (
    "its last lines are among those without a rank: read these from the first time-out up; for the next start a file "
    "for each rank tells them apart: torchrun --log-dir DIR --redirects 3 (srun -o '%x-%t.log')"
)
_READ_LOG = "read the log of rank {rank} from its last line up"


@dataclass(frozen=True)
class LastLine:
    """Last line of a missing rank."""

    rank: int
    text: str
    """Empty if no line is known to be its own."""
    where: str
    """File and line number."""
    phase: str | None


@dataclass(frozen=True)
class Missing:
    """Ranks that others waited for in vain."""

    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    """Ranks that reported the time-out."""
    world_size: int | None = None
    """Number of ranks in the logs; None if unknown."""
    first_rank: int = 0
    """The missing rank in the report: the first one that wrote nothing or was not training, else the first."""
    last_line: str = ""
    """Its last line; empty if its log has none."""
    where: str = ""
    """File and line number of the last line."""
    phase: str | None = None
    are_alike: bool = True
    """Whether the other missing ranks were in the same phase, or wrote nothing either."""
    is_log_given: bool = True
    """False if each rank has its own log, and that of `first_rank` was not given."""
    are_lines_told_apart: bool = True
    """False if the log has lines without a rank, which may belong to the missing one."""
    last_lines: tuple[LastLine, ...] = ()
    """Of each missing rank, or only of the first ones if they are many."""
    is_under_way: bool = False
    """Whether the ranks had connected before: they trained, or the collective is not the group's first."""
    is_lost: bool = False
    """Whether the others lost their connection, rather than waiting until a time-out."""
    exit_code: int | None = None
    """Exit code of the missing rank's process; None if unknown."""
    odd: OddRanks | None = None
    """Collective of the `ranks`, if they reported the time-out as well, in another collective."""

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
        waited = say(_LOST if self.is_lost else _WAITED, **names)
        if self.odd is not None:
            odd = self.odd
            names |= {"theirs": odd.theirs, "others": odd.others, "operation": odd.operation, "other": self.waiting[0]}
            kind = "behind-one" if odd.kind == "behind" and len(self.waiting) == 1 else odd.kind
            return say(_ODD[kind], **names) + ("" if odd.kind == "apart" else waited)
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
        if not self.last_line and not self.are_lines_told_apart:
            unknown = " (no line could be attributed to it)" if one_rank else " (no line could be attributed to {one})"
            return say(absent, **names) + say(unknown, **names) + waited
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
        label = () if self.are_lines_told_apart else (say(_LABEL_LINES),)
        add_log = () if self.is_log_given else (say(_ADD_LOG, rank=rank),)
        if self.is_lost:
            return (*add_log, look_for_end, *(() if add_log else (read_log,)), say(_LOOK_FOR_NETWORK, rank=rank))
        if not self.last_line and self.is_under_way:
            return (*add_log, *label, look_for_end, dump)
        if not self.last_line:
            return (*add_log, *label, say(_LOOK_FOR_PROCESS, rank=rank), say(_COMPARE_NODES))
        if (first := REMEDIES.get(self.phase or "")) and not (self.is_under_way and self.phase == SETTING_UP):
            return (say(first), say(_WAIT_LONGER))
        return (dump, read_log)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "what": self.what}


def listed(ranks: Sequence[int]) -> str:
    """Ranks as ranges: "1-3, 5" for 1, 2, 3, 5."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
