"""Which entry of the knowledge a log was explained with."""

from __future__ import annotations

from ascendtune.check.explain.explain import Explanation


def entry_of(explanation: Explanation) -> str | None:
    """Id of the entry that the headline is made from; None where no failure was found."""
    first = explanation.verdict.first
    return first.hit.entry.id if first is not None else None
