"""What is known about an exception: by the knowledge of all lines, else by that of what packages raise.

Packages have thousands of messages. What is known about them is read only where an exception was raised and the rest of
the knowledge does not name one cause of it, so that it costs the logs of other failures nothing.
"""

from __future__ import annotations

from functools import cache

from ascendtune.check.explain.event import CODE
from ascendtune.check.explain.knowledge import KnownFailure, raised_entries
from ascendtune.check.explain.matcher import Hit, Matcher
from ascendtune.check.explain.trace import Trace


def hits_of(matcher: Matcher, said: str, trace: Trace) -> list[Hit]:
    """Everything known about an exception, the best first.

    Args:
        matcher: of the knowledge of all lines.
        said: the exception's type and message.
    """
    hits = _passed(matcher.hits(said), trace)
    certain = [hit for hit in hits if _says_why(hit.entry) and len(hit.entry.causes) < 2]
    if all(hit.entry.is_conditional for hit in certain):
        # Of several causes, the one that the package's own words mean; before it what the rest of the log may prove.
        least = max((hit.length for hit in hits if _says_why(hit.entry)), default=0)
        of_packages = _passed(_matcher().hits(said), trace)
        told = [hit for hit in of_packages if hit.length > least or hit.entry.conditions]
        hits = [*certain, *told, *(hit for hit in hits if hit not in certain)]
    # Frames of a launcher show that the exception is its report of a child, whatever its words are.
    reported = [hit for hit in hits if hit.entry.is_report]
    return reported or hits


def _passed(hits: list[Hit], trace: Trace) -> list[Hit]:
    """Those whose frames the traceback has."""
    return [hit for hit in hits if not hit.entry.frame or trace.passed(hit.entry.frame)]


def _says_why(entry: KnownFailure) -> bool:
    return entry.kind != "unknown" and not entry.general and entry.family != CODE


@cache
def _matcher() -> Matcher:
    return Matcher(raised_entries())
