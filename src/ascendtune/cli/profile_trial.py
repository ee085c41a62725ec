"""`ascendtune profile --try`: measure changes that the report proposes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascendtune.core.errors import CheckFailed
from ascendtune.core.terminal_text import safe, wrap_words

if TYPE_CHECKING:
    from ascendtune.check.profile.advice_entry import Advice
    from ascendtune.check.profile.profile import RankProfile

_MOST_TRIALS = 3


@dataclass(frozen=True)
class MeasuredChange:
    """The measurement of one change."""

    code: str
    keys: dict[str, Any]
    expected_gain: float
    """Largest share of the step that the report expected to save."""
    gain: float | None
    """Share of the step that was saved, below 0 if the step became slower; None if it could not be trained."""
    run: str


def try_changes(
    advice: list[Advice], first: RankProfile, record: Callable[[list[str], str], Path]
) -> list[MeasuredChange]:
    """Profile again with each of the first changes that recipe keys can make, one at a time.

    Args:
        record: trains with these overrides and this end of the name; returns the run directory.
    """
    from ascendtune.check.profile.profile import read_profile
    from ascendtune.core import log

    trials = []
    for each in [one for one in advice if one.keys][:_MOST_TRIALS]:
        words = [f"{key}={json.dumps(value)}" for key, value in each.keys.items()]
        log.say(f"trying {' '.join(words)} ({each.code})")
        expected = each.gain / first.step_seconds
        try:
            run = record(words, each.code)
        except CheckFailed as error:
            trials.append(MeasuredChange(each.code, each.keys, expected, None, error.where or ""))
            continue
        profile = read_profile(run)[0]
        # A change may put other tokens into a step.
        seconds = profile.step_seconds * _tokens(first.facts) / _tokens(profile.facts)
        trials.append(MeasuredChange(each.code, each.keys, expected, 1 - seconds / first.step_seconds, str(run)))
    return trials


def trials_as_text(trials: list[MeasuredChange], columns: int) -> str:
    """The measurements, for people.

    Args:
        columns: width of the terminal.
    """
    from ascendtune.check.profile.language import say

    if not trials:
        return say("no change on the list is one that a recipe key makes: nothing was tried")
    lines = [say("tried, each alone, by time per token:")]
    for each in trials:
        keys = " ".join(f"{key}={json.dumps(value)}" for key, value in each.keys.items())
        measured = f"{-100 * each.gain:+.1f} %" if each.gain is not None else say("could not be trained")
        words = say("{keys} (at most {share} % expected)", keys=keys, share=f"{-100 * each.expected_gain:+.1f}")
        lines += wrap_words(safe(f"{words}  {each.run}"), columns, f"  {measured:>9}  ", " " * 13)
    return "\n".join(lines)


def _tokens(facts: dict[str, Any]) -> float:
    """Tokens of a step; 1 if unknown, then for both runs."""
    value = facts.get("tokens_per_step")
    return float(value) if isinstance(value, int | float) and value > 0 else 1.0
