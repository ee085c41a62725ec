"""Certainty of an answer.

An answer is "certain" if the log itself proves it: by a raised exception, or a program's report of its end, whose entry
has one cause. The job may have survived a logged or quoted failure; if there are several causes, the failure is
certain, but not its reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ascendtune.check.explain.cause.diagnosis import Diagnosis
from ascendtune.check.explain.event.event import Event, without_stamp
from ascendtune.check.explain.event.plain_message import message_of, reasons_in
from ascendtune.check.explain.event.scan import Scan
from ascendtune.check.explain.event.script_commands import is_of_script
from ascendtune.check.explain.event.unmatched import explains_itself
from ascendtune.check.explain.facts.facts import of_log, satisfied
from ascendtune.check.explain.language import say

_GUESS = re.compile(r"\b(?:usually|often|likely|probably|perhaps|maybe|may be|might|seems?|seldom)\b")
"""Words of an entry that gives only the most frequent cause."""
_ALTERNATIVES = re.compile(r", or |: [^:]* or (?:its|the|an?|another|it|this|no|not|of|was|is|were|has|have|in|that) ")
"""A failure with two or more reasons in the same sentence."""
_MANY_PHRASES = 3
"""Number of anchors from which on an entry is for a class of failures."""
_LEAST_OTHER_WORDS = 3
"""Words of a message that such an entry lacks, from which on the entry is not certain."""
_PLAIN_WORD = re.compile(r"(?<![\w./])[a-z]{4,}(?![\w/])")
_NAMES = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`|\S*[/=_\\]\S*|\[[^\]]*\]")
"""Values in a message: quoted names, paths, variables, lists."""


def sureness_of(diagnosis: Diagnosis, scans: Sequence[Scan] = ()) -> str:
    """Certainty of the first cause, as a phrase.

    Args:
        scans: of all logs; if there is only one, the conditions of an entry were met in the same log.
    """
    first = diagnosis.first
    if diagnosis.rival is not None and first is not None and diagnosis.rival.source == first.source:
        return say("these two: one was logged, the other ended the program, and may follow from it")
    if diagnosis.rival is not None:
        return say("these two: no clock in the logs says which was first")
    if diagnosis.missing is not None and diagnosis.missing.is_lost:
        return say("likely: the ranks that report no lost connection are those that the others lost")
    if diagnosis.missing is not None and diagnosis.missing.odd is not None:
        if diagnosis.missing.odd.kind == "behind":
            return say("likely: the ranks that are behind are those that the others waited for")
        return say("likely: ranks of one process group must make the same calls in the same order")
    if diagnosis.missing is not None:
        return say("likely: the ranks without a time-out are those that the others waited for")
    if first is None:
        return say("unknown: nothing is known about this failure; these are the most telling lines")
    if first.entry.kind == "consequence":
        return say("unknown: this line reports only that a process ended; why does not stand in these logs")
    is_wrapper_with_reason = first.reason and first.entry.kind == "wrapper"
    if is_wrapper_with_reason or (first.entry.general and first.hit.names.get("detail", first.message)):
        return say("likely: this kind of failure has several causes, and the message itself says most")
    if diagnosis.certainty == "symptom":
        return say("likely: this broke; no known line says why")
    if diagnosis.certainty == "unexplained" and explains_itself(first):
        return say("likely: the message itself names what failed; no entry of the knowledge matches it")
    if diagnosis.certainty == "unexplained":
        return say("unknown: nothing is known about this failure; these are the most telling lines")
    if _fits_in_words_only(first):
        return say("likely: the line has words of this kind of failure, and says more than they do")
    if first.entry.is_conditional and not _has_what_it_needs(first, scans):
        return say("likely: what decides it stands in the log of another rank or host")
    return _of_known_cause(diagnosis, first)


def _fits_in_words_only(event: Event) -> bool:
    """Whether the line matches one of many anchors of its entry, and has other words besides."""
    entry = event.entry
    if entry.specific or entry.conditions or "{" in entry.what or len(entry.anchors) < _MANY_PHRASES:
        return False
    message = without_stamp(message_of(event))
    reasons = [part for part in reasons_in(message) if any(_holds(part, anchor) for anchor in entry.anchors)]
    message = _NAMES.sub(" ", reasons[-1] if reasons else message)
    example = " ".join((entry.test, event.meaning, *(part for anchor in entry.anchors for part in anchor)))
    return len(_plain_words(message) - _plain_words(example)) >= _LEAST_OTHER_WORDS


def _holds(reason: str, anchor: tuple[str, ...]) -> bool:
    return all(part in reason.lower() for part in anchor)


def _plain_words(text: str) -> set[str]:
    return set(_PLAIN_WORD.findall(text.lower()))


def _has_what_it_needs(first: Event, scans: Sequence[Scan]) -> bool:
    """Whether the log of the line contains the required facts and text of its entry."""
    own = next((scan for scan in scans if scan.name == first.source), None)
    if own is None or len(scans) == 1:
        return True
    texts, entry = [own.head, own.tail], first.entry
    is_beside = entry.beside is None or any(map(entry.beside.search, texts))
    return is_beside and (not entry.requires or satisfied(entry.requires, of_log(texts)) is not None)


def _of_known_cause(diagnosis: Diagnosis, first: Event) -> str:
    if (first.is_quoted and not is_of_script(first)) or first.weak:
        followed = [echo for echo in diagnosis.echoes if first.entry.id in echo.entry.echo_of]
        if not followed:
            is_alone = "likely: no other line of the log says why it failed"
            return say("likely: the line is quoted or logged, not raised" if diagnosis.echoes else is_alone)
        if not any(echo.is_raised and _comes_after(first, echo) for echo in followed):
            return say("likely: it was said as a warning, and the failure after it is what follows from it")
    return _of_causes(first)


def _comes_after(warning: Event, echo: Event) -> bool:
    """Whether the same process, as far as the log shows, failed after its warning."""
    is_same = echo.source == warning.source and warning.rank in (None, echo.rank)
    return is_same and echo.last > warning.number


def _of_causes(first: Event) -> str:
    if _GUESS.search(first.entry.what):
        return say("likely: the most frequent cause of what broke")
    if len(first.entry.causes) > 1 or _ALTERNATIVES.search(first.entry.what):
        return say("certain what broke; why: one of several known causes")
    return say("certain")
