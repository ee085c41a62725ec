"""What is known about an exception: by the knowledge of all lines, and by that of what packages raise.

Packages have thousands of messages. What is known about them is read only where an exception was raised or an error
logged: it costs other logs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from ascendtune.check.explain.event.caller_and_library import caller_and_library_of
from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.unmatched import calling_place
from ascendtune.check.explain.knowledge.entries import (
    EXPRESSION,
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
from ascendtune.check.explain.traceback.trace import Trace
from ascendtune.check.explain.traceback.traces import Traces
from ascendtune.core.imports import uncollected_imports

_UNMISTAKABLE = 25
"""Letters of an anchor that are the package's own, whoever raised them."""
_NATIVE = ("torch", "torch_npu")
"""Packages that raise in native code, of which a traceback has no frame: it ends in the code that called them."""
_OF_NATIVE = 20
"""Letters of an anchor that count without a frame of such a package."""
_GENERAL = "general_"
"""Beginning of the families of messages that are no package's own."""


def hits_of(matcher: Matcher, said: str, trace: Trace) -> list[Hit]:
    """Everything known about an exception, the best first.

    Args:
        matcher: of the knowledge of all lines.
        said: the exception's type and message.
    """
    hits = _passed(matcher.hits(said), said, trace)
    if trace.frames and trace.is_composed and any(hit.entry.kind == "notice" for hit in hits):
        # What is harmless may be said by the line below the exception, which need not belong to its message.
        said = trace.lines[0]
        hits = _passed(matcher.hits(said), said, trace)
    if not any(hit.entry.kind == "notice" for hit in hits):
        of_packages = [hit for hit in _passed(_matcher().hits(said), said, trace) if _may_raise(hit, said, trace)]
        hits = sorted([*hits, *of_packages], key=rank)
    # Frames of a launcher show that the exception is its report of a child, whatever its words are.
    reported = [hit for hit in hits if hit.entry.is_report]
    return reported or hits


def name_caller_and_library(hit: Hit, trace: Trace) -> None:
    """Add to the names of `hit` what the frames tell: who asked, for what, and of which library; and what the
    tables tell of a model type."""
    importer, owner = caller_and_library_of(hit, trace)
    found = {
        IMPORTER: importer,
        EXPRESSION: trace.none_expression or trace.taken_from,
        TABLE: trace.table,
        OWNER: owner,
        PLACE: calling_place(trace) if trace.frames else "",
    }
    if f"{{{SINCE}}}" in hit.entry.what:
        found[SINCE] = release_of_model_type(hit.names.get("type", ""))
    for name, value in found.items():
        if value:
            hit.names.setdefault(name, value)


def known_exception(matcher: Matcher, said: str, number: int) -> Trace | None:
    """The exception that a line names, whatever its class is called, if something is known of it."""
    trace = Traces.of_any_name(said, number)
    hits = hits_of(matcher, said, trace) if trace is not None else []
    return trace if any(hit.entry.kind not in ("unknown", "notice") for hit in hits) else None


def look_up_unmatched(events: Iterable[Event]) -> None:
    """Use an entry of what packages raise where its message was logged as an error, without an exception."""
    for event in events:
        is_error = event.trace is None and not (event.weak or event.is_heading or event.entry.kind == "notice")
        if is_error and (found := _hit_of_line(event.text)) is not None:
            event.hit = min(event.hit, found, key=rank)


def _hit_of_line(said: str) -> Hit | None:
    """The entry of an error that was logged without its exception; anchors below 25 letters do not count."""
    hits = (hit for hit in _matcher().hits(said) if hit.length >= _UNMISTAKABLE and hit.entry.kind != "notice")
    of_any = (hit for hit in hits if not hit.entry.frame and not hit.entry.origin)
    return next((hit for hit in of_any if not hit.entry.is_conditional), None)


def _passed(hits: list[Hit], said: str, trace: Trace) -> list[Hit]:
    """Those whose frames and origin the traceback has, with the names of the latter."""
    found = []
    for hit in hits:
        names = names_of(hit.entry.origin, said, trace)
        if hit.entry.what.startswith(f"{{{IMPORTER}}}") and trace.asks_for_attribute and not trace.importer_of(""):
            # A package only handed the request of one's own code on.
            continue
        if hit.entry.is_of_api and not hit.entry.origin and is_read_by_itself(said, trace):
            # The library is not older than itself.
            continue
        if names is not None and (not hit.entry.frame or trace.passed(hit.entry.frame)):
            hit.names.update(names)
            found.append(hit)
    return found


def _may_raise(hit: Hit, said: str, trace: Trace) -> bool:
    """A few words may be those of any program: they count where the traceback passed the package, or is not there."""
    family = hit.entry.family.removeprefix(RAISED)
    least = _OF_NATIVE if family in _NATIVE else _UNMISTAKABLE
    if hit.length >= least or hit.entry.frame or family.startswith(_GENERAL) or not trace.frames:
        return True
    passed = (said, *trace.files)
    return any(family in each.lower().replace("-", "_") for each in passed)


@cache
def _matcher() -> Matcher:
    with uncollected_imports():
        return Matcher(raised_entries())
