"""Shards of tokens, written by one process or by several that process shards in turn.

The division into shards depends only on the rows, so the result is the same, byte for byte, for any number of
processes.
Workers are forked: they inherit the rows, and only shard numbers are sent to them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path

from ascendtune.data.report import TokenCounts
from ascendtune.data.store import ShardWriter
from ascendtune.data.workers import run_in_workers

NO_ANSWER_LEFT = "no answer left within max_length"
NOTHING_TO_LEARN = "no token to train on"
NO_ANSWER_SPAN = "the chat template writes no answer span"
TOO_LONG = "longer than max_length"
REFUSED = "the chat template refuses it"
INDIVISIBLE = "one word of millions of characters"


@dataclass
class TokenizeResult(TokenCounts):
    """The result of tokenising rows; `add` adds the result of a shard. Rows are numbered; a pair is one row."""

    rows: int = 0
    shortest: int | None = None
    dropped: list[tuple[int, str, str]] = field(default_factory=list)
    """(row, reason, detail): rows that were not written."""
    disagrees: bool = False
    """Whether the fast path of rendering disagreed with Jinja: then the result is invalid."""
    by_dataset: list[TokenizeResult] = field(default_factory=list)
    """The results of the data sets, in their order; empty for a part of one."""

    def add(self, other: TokenizeResult) -> None:
        self.add_counts(other)
        self.rows += other.rows
        shortest = [each for each in (self.shortest, other.shortest) if each is not None]
        self.shortest = min(shortest, default=None)
        self.dropped += other.dropped
        self.disagrees |= other.disagrees

    def saw(self, length: int) -> None:
        """Record the length of a row before truncation."""
        self.longest = max(self.longest, length)
        self.shortest = length if self.shortest is None else min(self.shortest, length)


MOST_SHARDS = 256
_MOST_PROCESSES = 16

Progress = Callable[[int, int], None]
"""Called with (rows done, rows in all)."""


def write_shards(
    directory: Path,
    shards: Sequence[Sequence[range]],
    write: Callable[[range, ShardWriter], TokenizeResult],
    *,
    processes: int,
    group_size: int = 1,
    progress: Progress | None = None,
) -> TokenizeResult:
    """Call `write` for every shard's rows; outcomes are added in the order of the shards.

    The first shard that disagrees ends the call.

    Args:
        shards: of each data set, in their order.

    Raises:
        MachineError: the disk is full or read-only, or a process was killed.
    """

    def work(number: int) -> TokenizeResult:
        with ShardWriter(directory / f"{number:05d}.arrow", group_size=group_size) as writer:
            return write(in_order[number], writer)

    in_order = [*chain.from_iterable(shards)]
    outcomes: dict[int, TokenizeResult] = {}
    count, done = sum(map(len, in_order)), 0
    with _one_thread_a_process(), closing(run_in_workers(work, len(in_order), processes)) as results:
        for number, outcome in results:
            outcomes[number] = outcome
            done += len(in_order[number])
            if progress:
                progress(done // group_size, count // group_size)
            if outcome.disagrees:
                return outcome
    total, numbers = TokenizeResult(), iter(range(len(in_order)))
    for of_dataset in shards:
        part = TokenizeResult()
        for number in islice(numbers, len(of_dataset)):
            part.add(outcomes[number])
        total.add(part)
        total.by_dataset.append(part)
    return total


def ranges_of(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first row, end) of each data set, from the numbers of their rows."""
    return pairwise(accumulate(sizes, initial=0))


def processes_for(requested: int | None, worth: int) -> int:
    """Number of processes: `requested` if it is set, else as many as the work is worth and the machine has CPUs for."""
    if requested is not None:
        return requested
    return max(1, min(len(os.sched_getaffinity(0)), _MOST_PROCESSES, worth))


@contextmanager
def _one_thread_a_process() -> Iterator[None]:
    """Context in which the tokenizer uses no threads of its own: the work is divided among processes."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before
