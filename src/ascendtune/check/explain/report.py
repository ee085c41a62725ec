"""An explanation as text: what happened, where, why, what to do, and the source."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ascendtune.check.explain.event import Event
from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.matcher import filled
from ascendtune.check.table import WIDE, Paint

_SHORT = 220
_ECHOES = 5
_LINES = 3


def as_text(explanation: Explanation, *, columns: int | None, paint: Paint) -> str:
    """Args:
    columns: width of the terminal, None where there is none.
    """
    limit = columns or WIDE
    lines = list(_blocks(explanation))
    head, *rest = lines
    out = [paint(line, "bold") for line in textwrap.wrap(head[1], limit)]
    for label, text in rest:
        indent = " " * 9
        out += textwrap.wrap(
            text,
            max(limit, 40),
            initial_indent=f"{label:<9}",
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(out)


def _blocks(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """(label, text); the first one is the headline."""
    found, first = explanation.verdict, explanation.verdict.first
    yield "", explanation.headline()
    if first is None and explanation.run_cause is None:
        if explanation.stop:
            yield "do", str(explanation.stop["remedy"])
        yield from _read(explanation)
        return
    if first is not None and first.hit.entry.kind == "consequence":
        or_in_plog = f", or in {explanation.plog}" if explanation.plog else ""
        yield "", f"These logs hold echoes only; the cause stands in another rank's log{or_in_plog}."
    if explanation.is_running:
        yield "", "The run is under way; this is what it has written since it was started."
    if found.certainty == "symptom":
        yield "", "This is what broke; no line is known to say why, so the causes below are what it usually is."
    if first is not None:
        yield "where", first.where
        yield "seen", _short(first.text)
        yield from _trace(first)
        yield from _entry(explanation, first)
    for number, remedy in enumerate(explanation.remedies(), 1):
        yield "do" if number == 1 else "", f"{number}. {remedy}"
    if first is not None:
        if first.hit.entry.checks:
            yield "look", "ascendtune doctor " + " ".join(first.hit.entry.checks)
        yield "source", first.hit.entry.source
    yield from _echoes(explanation)


def _trace(event: Event) -> Iterator[tuple[str, str]]:
    if event.trace is not None and (place := event.trace.place) is not None:
        file, line, function = place
        yield "frame", f"{file}:{line}" + (f" in {function}" if function else "")


def _entry(explanation: Explanation, first: Event) -> Iterator[tuple[str, str]]:
    if (sums := explanation.sums) is not None:
        yield "memory", sums.line()
        if sums.conclusion:
            yield "", sums.conclusion
    for number, cause in enumerate(first.hit.entry.causes, 1):
        yield "why" if number == 1 else "", f"{number}. {filled(cause, first.hit.names)}"


def _echoes(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """The other events, so that they are not mistaken for the cause: one line a kind."""
    first = explanation.verdict.first
    kinds: dict[str, list[Event]] = {}
    for event in explanation.verdict.echoes:
        name = event.hit.entry.id if event.is_known else event.text[:80]
        if first is None or name != first.hit.entry.id:
            kinds.setdefault(name, []).append(event)
    for number, (name, events) in enumerate(list(kinds.items())[:_ECHOES]):
        ranks = sorted({event.rank for event in events if event.rank is not None})
        who = f" on rank {', '.join(map(str, ranks))}" if ranks else ""
        meaning = f": {events[0].meaning}" if events[0].is_known else ""
        yield "besides" if number == 0 else "", _short(f"{name}{who} ({events[0].where}){meaning}")
    if first is not None and first.hit.entry.kind in ("unknown", "detail"):
        more = f"; {explanation.plog} of the failing process says more" if explanation.plog else ""
        yield "unknown", f"nothing is known about this{more}"


def _read(explanation: Explanation) -> Iterator[tuple[str, str]]:
    for scan in explanation.scans:
        yield "read", f"{scan.name}: {scan.lines_read:,} lines"
    for event in explanation.verdict.notices[:_LINES]:
        yield "note", f"{event.meaning} ({event.where})"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"
