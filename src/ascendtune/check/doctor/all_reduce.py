"""Two processes add up a vector: gloo, NCCL or HCCL, whichever joins the devices here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from ascendtune.check.doctor.answer import SECONDS, answer, no_answer, why_not_asked
from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok
from ascendtune.core.process import Finished
from ascendtune.core.units import format_bytes
from ascendtune.machine.visible import Visible

CODE = "all_reduce"

_RANKS = 2
_CPU = Visible("cpu", ("0",))
_ENDED_BY_THE_OTHER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "wait timeout")


def _look(outside: Outside) -> Iterator[Finding]:
    if nothing := why_not_asked(outside, CODE):
        yield nothing
        return
    # Two ranks on one device is a thing that NCCL and HCCL refuse.
    joined = outside.visible if len(outside.visible.ids) >= _RANKS else _CPU
    with TemporaryDirectory(prefix="ascendtune-all-reduce-") as meeting, ThreadPoolExecutor(_RANKS) as pool:
        ranks = list(pool.map(lambda rank: _start(outside, joined.kind, rank, Path(meeting) / "store"), range(_RANKS)))
    yield _judge(joined, ranks, is_all=joined.kind == outside.visible.kind)


def _start(outside: Outside, kind: str, rank: int, store: Path) -> Finished:
    module = "ascendtune.check.doctor.all_reduce_probe"
    argv = [outside.program, "-m", module, kind, str(rank), str(_RANKS), str(store)]
    return outside.run(argv, timeout_seconds=SECONDS)


def _judge(joined: Visible, ranks: Sequence[Finished], *, is_all: bool) -> Finding:
    """`is_all`: what was joined is what is visible."""
    answers = [answer(done) for done in ranks]
    silent = [rank for rank, told in enumerate(answers) if told is None]
    if silent:
        rank = _first_to_fail(ranks, silent)
        names = " and ".join([*joined.vendor.interface_variables, "GLOO_SOCKET_IFNAME"])
        return no_answer(
            CODE,
            f"rank {rank} of {_RANKS}, on {joined.label(rank)},",
            ranks[rank],
            expected="the sum over both ranks",
            remedy=f"ascendtune explain the lines below; check {names} and the findings compute and hccl_host first",
        )
    told = [each for each in answers if each is not None]
    backend, places = told[0]["backend"], " and ".join(dict.fromkeys(map(joined.label, range(_RANKS))))
    wrong = [rank for rank, each in enumerate(told) if each["wrong_elements"]]
    if wrong:
        count = told[wrong[0]]["wrong_elements"]
        return Finding(
            CODE,
            "failure",
            f"{backend} adds up wrongly: rank {wrong[0]} on {joined.label(wrong[0])} has {count} wrong sums",
            expected="the exact sum on both ranks",
            remedy="take the device out of use, look at its health and at the link between the two",
        )
    speed = format_bytes(min(each["bytes_per_second"] for each in told))
    alone = "" if is_all else "; one device is visible, so its own collectives are not tried"
    return ok(CODE, f"{backend} adds up {_RANKS} ranks on {places} at {speed}/s{alone}")


def _first_to_fail(ranks: Sequence[Finished], silent: Sequence[int]) -> int:
    """The rank that failed of itself: not one that waited for, or was left by, the other."""
    by_itself = [
        rank
        for rank in silent
        if not ranks[rank].timed_out and not any(sign in ranks[rank].error for sign in _ENDED_BY_THE_OTHER)
    ]
    return (by_itself or list(silent))[0]


CHECK = Check(
    CODE,
    what="Made with `--deep` only: two processes, each on a device of its own, add up a vector with the backend of the "
    "devices (HCCL, NCCL; gloo on a CPU and where one device is visible), and compare every sum with the exact one.",
    why="A card that computes alone may still not reach its neighbour: a link, an interface name or a version of the "
    "collective library is wrong. In a job of many ranks that is a time-out after half an hour, on every rank alike.",
    fix="A rank that ends at once: its message says why; see the check compute. Both wait: the two do not reach each "
    "other; HCCL_SOCKET_IFNAME, NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME must name an interface that is up and that "
    "both have. Wrong sums: the link or the card.",
    look=_look,
)
