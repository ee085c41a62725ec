"""Entries for an exception: those for all lines, and those for messages that packages raise.

Packages have thousands of messages. Their entries are read only if an exception was raised or an error logged, and so
do not slow down other logs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from ascendtune.check.explain.event.caller_and_library import caller_and_library_of
from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.unmatched import calling_place
from ascendtune.check.explain.knowledge.entries import (
    EXPRESSION,
    GENERAL,
    IMPORTER,
    OWNER,
    PLACE,
    RAISED,
    SINCE,
    TABLE,
    raised_entries,
)
from ascendtune.check.explain.knowledge.matcher import Hit, Matcher, rank
from ascendtune.check.explain.package.api_change import release_of_model_type
from ascendtune.check.explain.package.origin import is_read_by_itself, names_of
from ascendtune.check.explain.traceback.code_of_frame import with_class
from ascendtune.check.explain.traceback.trace import Trace
from ascendtune.check.explain.traceback.traces import Traces
from ascendtune.core.imports import uncollected_imports

_UNMISTAKABLE = 25
"""Fewest letters of an anchor that only the package's own message contains."""
_NATIVE = ("torch", "torch_npu")
"""Packages that raise in native code, without a frame in the traceback: it ends in the calling code."""
_OF_NATIVE = 20
"""Fewest letters of an anchor that count without a frame of such a package."""


def hits_of(matcher: Matcher, message: str, trace: Trace) -> list[Hit]:
    """All entries that match an exception, the best first.

    Args:
        matcher: of the entries for all lines.
        message: the exception's type and message.
    """
    message = with_class(message, trace.code)
    hits = _passed(matcher.hits(message), message, trace)
    if trace.frames and trace.is_composed and any(hit.entry.kind == "notice" for hit in hits):
        # The harmless part may be in the line below the exception, which may not belong to its message.
        message = trace.lines[0]
        hits = _passed(matcher.hits(message), message, trace)
    if not any(hit.entry.kind == "notice" for hit in hits):
        of_packages = [
            hit for hit in _passed(_matcher().hits(message), message, trace) if _may_raise(hit, message, trace)
        ]
        hits = sorted([*hits, *of_packages], key=rank)
    # Frames of a launcher show that the exception is its report of a child, with any message.
    reported = [hit for hit in hits if hit.entry.is_report]
    return reported or hits


def name_caller_and_library(hit: Hit, trace: Trace) -> None:
    """Add to the names of `hit` the caller, the expression, the table, the library and the place from the frames, and
    the release of a model type from the tables."""
    importer, owner = caller_and_library_of(hit, trace)
    names = {
        IMPORTER: importer,
        EXPRESSION: trace.none_expression or trace.taken_from,
        TABLE: trace.table,
        OWNER: owner,
        PLACE: calling_place(trace) if trace.frames else "",
    }
    if f"{{{SINCE}}}" in hit.entry.what:
        names[SINCE] = release_of_model_type(hit.names.get("type", ""))
    for name, value in names.items():
        if value:
            hit.names.setdefault(name, value)


def known_exception(matcher: Matcher, message: str, number: int) -> Trace | None:
    """Exception with any class name in a line, if an entry matches it."""
    trace = Traces.of_any_name(message, number)
    hits = hits_of(matcher, message, trace) if trace is not None else []
    return trace if any(hit.entry.kind not in ("unknown", "notice") for hit in hits) else None


def look_up_unmatched(events: Iterable[Event]) -> None:
    """Match the entries for messages that packages raise with errors that were logged without an exception."""
    for event in events:
        is_error = event.trace is None and not (event.weak or event.is_heading or event.entry.kind == "notice")
        if is_error and (hit := _hit_of_line(event.text)) is not None:
            event.hit = min(event.hit, hit, key=rank)


def _hit_of_line(message: str) -> Hit | None:
    """Entry for an error that was logged without its exception; anchors below 25 letters do not count."""
    hits = (hit for hit in _matcher().hits(message) if hit.length >= _UNMISTAKABLE and hit.entry.kind != "notice")
    of_any = (hit for hit in hits if not hit.entry.frame and not hit.entry.origin)
    return next((hit for hit in of_any if not hit.entry.is_conditional), None)


def _passed(hits: list[Hit], message: str, trace: Trace) -> list[Hit]:
    """Hits whose required frames and origin the traceback has, with the names of the origin added."""
    passed = []
    for hit in hits:
        names = names_of(hit.entry.origin, message, trace)
        if hit.entry.what.startswith(f"{{{IMPORTER}}}") and trace.asks_for_attribute and not trace.importer_of(""):
            # A package only passed on the request of the user's code.
            continue
        if hit.entry.is_of_api and not hit.entry.origin and is_read_by_itself(message, trace):
            # The library is not older than itself.
            continue
        if names is not None and (not hit.entry.frame or trace.passed(hit.entry.frame)):
            hit.names.update(names)
            passed.append(hit)
    return passed


def _may_raise(hit: Hit, message: str, trace: Trace) -> bool:
    """Whether the package of the entry may have raised the exception.

    A short anchor may be in a message of any program: it counts only if the traceback contains the package, or
    the log has no traceback.
    """
    family = hit.entry.family.removeprefix(RAISED)
    least = _OF_NATIVE if family in _NATIVE else _UNMISTAKABLE
    if hit.length >= least or hit.entry.frame or hit.entry.family.startswith(GENERAL) or not trace.frames:
        return True
    passed = (message, *trace.files)
    return any(family in each.lower().replace("-", "_") for each in passed)


@cache
def _matcher() -> Matcher:
    with uncollected_imports():
        return Matcher(raised_entries())
