"""Ranks that have ended, by what they noted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ascendtune.check.comm.notes import notes_path, read_notes
from ascendtune.check.comm.start import RankGroup, RankResults
from ascendtune.core.errors import CheckFailed
from ascendtune.core.records import LineWriter
from ascendtune.job.result import JobResult, SeenFailure

MakeRan = Callable[..., RankResults]


@pytest.fixture
def ran(tmp_path: Path) -> MakeRan:
    """`ran([notes of rank 0], [notes of rank 1], …)`; `seen` is the rank that the launcher saw ending
    first, and how."""

    def make(
        *notes: Sequence[dict[str, Any]], seen: tuple[int, str] | None = None, names: tuple[str, ...] = ()
    ) -> RankResults:
        for rank, of_rank in enumerate(notes):
            writer = LineWriter(notes_path(tmp_path, rank))
            for note in of_rank:
                writer.write(note)
            writer.close()
        outcome = JobResult(0)
        if seen is not None:
            rank, ending = seen
            error = CheckFailed(f"rank {rank} {ending}", code="test", remedy="look")
            outcome = JobResult(1, error, failure=SeenFailure("signal", error, 1, rank, ending=ending))
        return RankResults(
            RankGroup("cpu", len(notes), None, names), tmp_path, outcome, read_notes(tmp_path, len(notes))
        )

    return make
