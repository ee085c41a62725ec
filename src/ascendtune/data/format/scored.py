"""Scored: several answers to one prompt, each with a score or a rank, as in UltraFeedback; the best and the worst."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from ascendtune.core.units import count_of
from ascendtune.data.conversation import BadRow, PreferencePair
from ascendtune.data.format import preference
from ascendtune.data.format.answer import PROMPT_WORDS
from ascendtune.data.format.turns import is_text, listed

TASKS = ("pairs",)
WORDS = ("completions", *PROMPT_WORDS)

_ANSWERS = ("response", "answer", "completion", "output", "content", "text")
# The overall score of UltraFeedback was at first wrong in many rows; the mean of its four ratings never was.
_SCORES = ("fine-grained_score", "overall_score", "score", "rating", "reward")
_RANK = "rank"
"""Names of ranks: 1 is the best."""


def matches(columns: Collection[str]) -> bool:
    return "completions" in columns and "chosen" not in columns


def is_scored(completions: Any) -> bool:
    """Whether `completions` is a list of answers of which at least two have scores."""
    answers = listed(completions)
    return isinstance(answers, list) and len(_scored(answers)) > 1


def convert(row: Mapping[str, Any]) -> PreferencePair:
    """A pair of the answers with the highest and the lowest score; of equal ones the first.

    An answer whose score is missing or not a number is skipped.
    """
    answers = listed(row.get("completions"))
    if not isinstance(answers, list):
        raise BadRow("no list of answers", "completions must be a list of answers with scores")
    scored = _scored(answers)
    if len(scored) < 2:
        raise BadRow("fewer than two scores", f"{len(scored)} of {count_of(len(answers), 'answer')} with a score")
    best, worst = max(score for score, _ in scored), min(score for score, _ in scored)
    if best == worst:
        raise BadRow("equal scores", "no answer is better than another")
    chosen = next(answer for score, answer in scored if score == best)
    rejected = next(answer for score, answer in scored if score == worst)
    kept = {name: value for name, value in row.items() if name in PROMPT_WORDS}
    return preference.convert({**kept, "chosen": chosen, "rejected": rejected})


def _scored(answers: list[Any]) -> list[tuple[float, Any]]:
    """(score, answer) of the answers that have both; all by the same name, the first that two of them have."""
    pairs = [
        (each, next((each[name] for name in _ANSWERS if is_text(each.get(name))), None))
        for each in answers
        if isinstance(each, dict)
    ]
    answered = [(each, answer) for each, answer in pairs if answer is not None]
    for name in (*_SCORES, _RANK):
        scored = [(_number(each.get(name)), answer) for each, answer in answered]
        kept = [(-score if name == _RANK else score, answer) for score, answer in scored if score is not None]
        if len(kept) > 1:
            return kept
    return []


def _number(value: Any) -> float | None:
    try:
        number = math.nan if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
