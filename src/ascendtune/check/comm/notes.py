"""What each rank writes while it works, and the command reads: one file a rank, one line of JSON a note.

Notes: {"at": place} before each piece of work, {"started": …} when the device has been told of it, {"cell": …},
{"row": …} and {"pair": …} for results, {"absent": ranks} or {"error": message} where the rank gave up, {"done": true}
at the end. A rank that died has no end in its file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.files import LineWriter, read_json_lines

_ECHOES = re.compile(
    r"closed by peer|reset by peer|broken pipe|connection refused|socket closed|remote process exited|"
    r"timed? ?out|timeout",
    re.IGNORECASE,
)
"""Messages of a rank that was left by, or waited in vain for, another."""


def is_echo(message: str) -> bool:
    """Whether an error only tells that another rank is gone or silent."""
    return bool(_ECHOES.search(message))


def notes_path(directory: Path, rank: int) -> Path:
    return directory / f"rank_{rank}.jsonl"


class NoteWriter(LineWriter):
    """The notes of this rank."""

    def __init__(self, directory: Path, rank: int) -> None:
        super().__init__(notes_path(directory, rank))


@dataclass(frozen=True)
class RankNotes:
    """What one rank has left behind."""

    rank: int
    notes: tuple[dict[str, Any], ...]

    def of(self, kind: str) -> Iterator[Any]:
        """The contents of all notes {kind: content}."""
        return (note[kind] for note in self.notes if kind in note)

    def one(self, kind: str) -> Any:
        """The last of them, or None."""
        return next((note[kind] for note in reversed(self.notes) if kind in note), None)

    @property
    def is_done(self) -> bool:
        return bool(self.one("done"))

    @property
    def is_echo(self) -> bool:
        """Whether this rank only tells that another one is gone or silent."""
        return bool(self.one("absent")) or is_echo(self.one("error") or "")


def read_notes(directory: Path, ranks: int) -> tuple[RankNotes, ...]:
    """The notes of all ranks; none for a rank that has not come to write any."""
    return tuple(RankNotes(rank, tuple(read_json_lines(notes_path(directory, rank)))) for rank in range(ranks))
