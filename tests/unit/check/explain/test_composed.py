"""Every known failure, planted on one rank among many, with the echoes that it causes on the others."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from ascendtune.check.explain.cause.diagnosis import Diagnosis
from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.knowledge.entries import KnownFailure, entries

_RANKS = 8
_PREFIXES = (
    "[rank{rank}]: ",
    "[rank {rank}] ",
    "[default{rank}]:",
    "[1,{rank}]<stderr>:",
    "(Worker rank={rank} pid=71{rank}) ",
)
_ECHOES = (
    "[ERROR] TBE Subprocess[task_distribute] raise error[], main process disappeared!",
    "torch.distributed.DistNetworkError: Connection reset by peer, recvValue failed on SocketImpl",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
)
_END = (
    "W1120 10:11:12.000000 140 torch/distributed/elastic/multiprocessing/api.py:897] "
    "Sending process 1234 closing signal SIGTERM",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
)
_NAMES_A_RANK = re.compile(r"rank\W{0,3}\d", re.IGNORECASE)
"""What the line itself says of ranks goes before who says it."""
_EXPLAINING = [
    entry
    for entry in entries()
    if entry.kind in ("cause", "symptom")
    and not entry.lasting
    and "DEBUG: " not in entry.test
    and "RankID:-1" not in entry.test
]
"""News counts only where a log ends with it; a process that is no rank of a job writes no log of ranks."""


def _composed(entry: KnownFailure, seed: int, *, steps: int = 2) -> tuple[list[str], int]:
    """(lines, guilty rank): healthy lines of all ranks for some steps, the failure, echoes of the others."""
    choose = random.Random(seed)
    guilty = choose.randrange(_RANKS)
    prefix = choose.choice(_PREFIXES)

    def say(rank: int, text: str) -> str:
        return prefix.format(rank=rank) + text

    healthy = [
        say(rank, f"step {step} loss {2 - step / 100:.4f} tokens_per_second {choose.randrange(9999)}")
        for step in range(steps)
        for rank in range(_RANKS)
    ]
    others = [rank for rank in range(_RANKS) if rank != guilty]
    failure = [say(guilty, line) for line in entry.test.strip().splitlines()]
    echoes = [say(choose.choice(others), echo) for echo in _ECHOES for _ in range(3)]
    interleaved = failure[:1]
    for line in failure[1:]:
        interleaved += [say(choose.choice(others), "step 30 loss 1.7000 tokens_per_second 12"), line]
    return [*healthy, *interleaved, *echoes, *_END], guilty


# A test of its own for each entry would be a thousand tests, which every test process would collect.
@pytest.mark.long
def test_the_first_cause_is_found_among_echoes(explained: Callable[..., Explanation]) -> None:
    for entry in _EXPLAINING:
        lines, guilty = _composed(entry, seed=sum(map(ord, entry.id)))

        verdict = explained("\n".join(lines)).verdict

        assert _first(verdict) == entry.id
        if entry.waits and verdict.missing is not None:
            # The line lists the ranks that did not come: the first of them is the one to look at.
            assert verdict.first is not None and verdict.first.hit is not None
            assert str(verdict.rank) in verdict.first.hit.names["missing"], entry.id
        elif not _NAMES_A_RANK.search(entry.test):
            assert verdict.rank == guilty, entry.id


@pytest.mark.long
def test_a_truncated_log_is_explained_as_well(explained: Callable[..., Explanation]) -> None:
    """The beginning is lost, and the end: in the middle of a line, and of a character."""
    for entry in _EXPLAINING[::7]:
        lines, _ = _composed(entry, seed=7, steps=30)
        text = "\n".join(lines[20:])

        verdict = explained("…" + text[7 : -len(_END[-1]) // 2]).verdict

        assert _first(verdict) == entry.id


def test_first_rank_is_found_by_the_times_in_separate_files(explained: Callable[..., Explanation]) -> None:
    """Files are given in an order that says nothing; the times in the lines do."""
    for entry in _EXPLAINING[::11]:
        said = "2025-11-20 10:00:05,000 - trainer - going on"
        failure = f"{said}\n{entry.test.strip()}\n{said if entry.below else ''}"
        echo = "2025-11-20 10:30:06,000 - trainer - going on\n" + _ECHOES[1]

        verdict = explained(rank_0=echo, rank_1=failure, rank_2=echo).verdict

        assert _first(verdict) == entry.id
        assert verdict.first is not None
        assert verdict.first.source.endswith("rank_1.log"), entry.id


def _first(verdict: Diagnosis) -> str | None:
    """Id of the entry that explains the first event."""
    return verdict.first.hit.entry.id if verdict.first is not None and verdict.first.hit is not None else None
