"""Advice in a message itself: in its own sentences, or in the lines below it."""

from __future__ import annotations

import re

from ascendtune.check.explain.log import level

_IMPERATIVE = (
    r"(?:Please(?! (?:note|ignore|report|submit|open|file|wait))|Try|Consider|Use(?! at your own)|Set|Make "
    r"sure|Ensure|Upgrade|Update|"
    r"Specify|Reduce|Increase|Check(?! failed)|Pass|Enable|Disable|Did you|You (?:can|may|might|should|need|must)|"
    r"To (?:fix|solve|avoid|resolve|use|disable))\b"
)
IN_MESSAGE = re.compile(
    rf"(?:(?:(?<=[.!?;] )|(?<=[.!?;])|^){_IMPERATIVE}|(?<=, )please (?!note|ignore|report|submit)\w)[^\n]{{8,}}"
)
"""Beginning of the advice in a message."""
_LINE = re.compile(rf"\s*(?:[-*•] )?{_IMPERATIVE} (?=\S+ \S)")
_PROSE = re.compile(r"\s*[A-Za-z][\w'-]*:? (?:\S+ ){2,}")
_OTHER = re.compile(
    r"\S*\d\d:\d\d|[^\s:]+\(\d+\)|\W*(?:Traceback|File|Exception|Fatal|Process|During)\b|(?:\w+\.)*\w+Error\b"
)
"""Lines of other speakers: with a time or the place of a warning; or those of the next exception."""
_MOST = 4
"""Lines below an exception that are searched for advice."""


def advice_below(message: str, below: list[str]) -> str:
    """Lines below a message, from the first advice on; empty if there is none.

    Args:
        message: the message as far as it is known; it may contain the first of the lines.
        below: the lines below the exception.
    """
    advice: list[str] = []
    for line in below[:_MOST]:
        stripped = line.strip()
        if not stripped:
            break
        is_advice = _LINE.match(line) is not None
        if not (is_advice or stripped in message or _PROSE.match(line)) or _OTHER.match(stripped) or _has_level(line):
            break
        if advice or is_advice:
            advice.append(stripped)
    return " ".join(advice)


def _has_level(line: str) -> bool:
    return level.is_error(line, line) or level.is_warning_or_news(line)
