"""Notes that each rank writes and the command reads: one file per rank, one line of JSON per note.

Notes: {"at": place} before each piece of work, {"started": …} after the work was submitted to the device, {"cell": …},
{"row": …} and {"pair": …} for results, {"absent": ranks} or {"error": message} if the rank gave up, {"done": true}
at the end. A rank that was killed has no {"done": true}.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.records import read_json_lines

_ECHOES = re.compile(
    r"closed by peer|reset by peer|broken pipe|connection refused|socket closed|remote process exited|"
    r"timed? ?out|timeout",
    re.IGNORECASE,
)
"""Messages of a rank whose peer is gone or did not answer."""


def is_echo(message: str) -> bool:
    """Whether an error only reports that another rank is gone or does not answer."""
    return bool(_ECHOES.search(message))


def notes_path(directory: Path, rank: int) -> Path:
    return directory / f"rank_{rank}.jsonl"


@dataclass(frozen=True)
class RankNotes:
    """The notes of one rank."""

    rank: int
    notes: tuple[dict[str, Any], ...]

    def of(self, kind: str) -> Iterator[Any]:
        """The contents of all notes {kind: content}, in order."""
        return (note[kind] for note in self.notes if kind in note)

    def last(self, kind: str) -> Any:
        """The content of the last note {kind: content}, or None."""
        return next((note[kind] for note in reversed(self.notes) if kind in note), None)

    @property
    def is_done(self) -> bool:
        return bool(self.last("done"))

    @property
    def is_echo(self) -> bool:
        """Whether this rank only reports that another one is gone or does not answer."""
        return bool(self.last("absent")) or is_echo(self.last("error") or "")


def read_notes(directory: Path, ranks: int) -> tuple[RankNotes, ...]:
    """The notes of all ranks; empty for a rank that wrote none."""
    return tuple(RankNotes(rank, tuple(read_json_lines(notes_path(directory, rank)))) for rank in range(ranks))
