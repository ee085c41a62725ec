"""The entry of the knowledge with which a log was explained."""

from __future__ import annotations

from ascendtune.check.explain.explain import Explanation


def entry_of(explanation: Explanation) -> str | None:
    """Id of the entry that the headline is made from; None where no failure was found."""
    first = explanation.verdict.first
    return first.hit.entry.id if first is not None else None
