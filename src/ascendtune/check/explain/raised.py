"""What is known about an exception: by the knowledge of all lines, and by that of what packages raise.

Packages have thousands of messages. What is known about them is read only where an exception was raised: it costs other
logs nothing.
"""

from __future__ import annotations

from functools import cache

from ascendtune.check.explain.knowledge import raised_entries
from ascendtune.check.explain.matcher import Hit, Matcher, rank
from ascendtune.check.explain.trace import Trace


def hits_of(matcher: Matcher, said: str, trace: Trace) -> list[Hit]:
    """Everything known about an exception, the best first.

    Args:
        matcher: of the knowledge of all lines.
        said: the exception's type and message.
    """
    hits = _passed(matcher.hits(said), trace)
    if not any(hit.entry.kind == "notice" for hit in hits):
        hits = sorted([*hits, *_passed(_matcher().hits(said), trace)], key=rank)
    # Frames of a launcher show that the exception is its report of a child, whatever its words are.
    reported = [hit for hit in hits if hit.entry.is_report]
    return reported or hits


def _passed(hits: list[Hit], trace: Trace) -> list[Hit]:
    """Those whose frames the traceback has."""
    return [hit for hit in hits if not hit.entry.frame or trace.passed(hit.entry.frame)]


@cache
def _matcher() -> Matcher:
    return Matcher(raised_entries())
