"""Shards of tokens, written in one process or in several that each take shards in turn.

Rows are cut into shards by what they are alone, so the result is the same, byte for byte, for any number of processes.
Workers are forked: the rows are there already, nothing is sent to them but shard numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from ascendtune.data.outcome import Outcome
from ascendtune.data.store import ShardWriter
from ascendtune.data.workers import run_in_workers

MOST_SHARDS = 256
_MOST_PROCESSES = 16

Progress = Callable[[int, int], None]
"""Called with (rows done, rows in all)."""


def write_shards(
    directory: Path,
    shards: Sequence[range],
    write: Callable[[range, ShardWriter], Outcome],
    *,
    processes: int,
    group_size: int = 1,
    progress: Progress | None = None,
) -> Outcome:
    """Call `write` for every shard's rows; the outcomes are added in the order of the shards.

    A shard that disagrees ends it all at once.

    Raises:
        MachineError: the disk is full or read-only, or a process was killed.
    """

    def work(number: int) -> Outcome:
        with ShardWriter(directory / f"{number:05d}.arrow", group_size=group_size) as writer:
            return write(shards[number], writer)

    made: dict[int, Outcome] = {}
    count, done = sum(map(len, shards)), 0
    with _one_thread_a_process(), closing(run_in_workers(work, len(shards), processes)) as results:
        for number, outcome in results:
            made[number] = outcome
            done += len(shards[number])
            if progress:
                progress(done // group_size, count // group_size)
            if outcome.disagrees:
                return outcome
    total = Outcome()
    for number in range(len(shards)):
        total.add(made[number])
    return total


def processes_for(wanted: int | None, worth: int) -> int:
    """How many processes to take: as many as are wanted, or as many as the work is worth and the machine has."""
    if wanted is not None:
        return wanted
    return max(1, min(len(os.sched_getaffinity(0)), _MOST_PROCESSES, worth))


@contextmanager
def _one_thread_a_process() -> Iterator[None]:
    """We share the work out ourselves; threads of the tokenizer on top would only wait for each other."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before
