"""Findings as text and as JSON: the verdict first, then the findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ascendtune.check.finding import Finding, Status, exit_code, worst_first
from ascendtune.core.language import Phrases
from ascendtune.core.records import json_for_programs
from ascendtune.core.terminal_text import columns_of, wrap_words

say = Phrases(__package__)

Paint = Callable[[str, str], str]
"""(text, colour) -> text; the caller decides how colours are printed."""
Body = Callable[[int], list[str]]
"""(columns to leave free on the left) -> lines"""

WIDE = 100
"""Width in columns of text that is written to a file."""
_COLOURS = {"failure": "red", "warning": "yellow", "unknown": "dim", "ok": "green"}
_STATUS_WIDTH = max(map(len, _COLOURS))
_LONG_REMEDY = 40
"""Characters: a longer remedy that several findings share is printed once."""
_NARROW = 80
"""On narrower terminals the measured value is on separate lines."""


def as_text(
    verdict: str, findings: Sequence[Finding], *, columns: int | None, paint: Paint, everything: bool = False
) -> str:
    """The verdict, then a block per finding, worst first: status, code, measured; expected, remedy and evidence below.

    Args:
        columns: width of the terminal; None if the output is not a terminal.
        everything: also print evidence of findings that are ok.
    """
    limit = columns or WIDE
    lines = blocks(findings, limit=limit, paint=paint, everything=everything)
    return "\n".join([*headline(verdict, limit=limit, paint=paint), *lines])


def headline(verdict: str, *, limit: int, paint: Paint) -> list[str]:
    lines = wrap_words(verdict, limit) or [verdict]
    return [paint(line, "bold") for line in lines]


def blocks(findings: Sequence[Finding], *, limit: int, paint: Paint, everything: bool = False) -> list[str]:
    """The lines below the verdict, wrapped at `limit` columns between words."""
    width = max((len(finding.code) for finding in findings), default=0)
    lines: list[str] = []
    remedies: dict[str, str] = {}
    shown = {finding.code for finding in findings if finding.status != "ok"}
    consequences = [finding for finding in findings if finding.because in shown and not everything]
    for finding in worst_first(finding for finding in findings if finding not in consequences):
        remedy = finding.remedy
        if remedy in remedies:
            first = remedies[remedy]
            remedy = say("the same as for {code}", code=first) if first != finding.code else say("the same as above")
        elif remedy is not None and len(remedy) > _LONG_REMEDY:
            remedies[remedy] = finding.code
        lines += _block(replace(finding, remedy=remedy), width, limit, paint, everything)
    unknown: dict[str, dict[str, None]] = {}
    for finding in consequences:
        unknown.setdefault(_first_reason(finding, consequences), {})[finding.code] = None
    for code, names in unknown.items():
        what = say("therefore not known either: {names}", names=", ".join(names))
        lines += _block(Finding(code, "unknown", what), width, limit, paint, everything)
    return lines


def _first_reason(finding: Finding, consequences: Sequence[Finding]) -> str:
    """The code of the finding that `finding` follows from, perhaps through others of `consequences`."""
    reasons = {each.code: each.because or "" for each in consequences}
    code = finding.code
    while code in reasons:
        code = reasons.pop(code)
    return code


def row(status: Status, name: str, name_width: int, limit: int, paint: Paint, body: Body) -> list[str]:
    """Status and name, with the lines of `body` beside them, or below them on a narrow terminal."""
    word = say(status)
    shown = paint(word + " " * (_STATUS_WIDTH - columns_of(word)), _COLOURS[status])
    if limit < _NARROW:
        return [f"{shown}  {name}", *body(4)]
    first, *more = body(_STATUS_WIDTH + name_width + 4) or [""]
    return [f"{shown}  {name}{' ' * (name_width - columns_of(name))}  {first.strip()}".rstrip(), *more]


def as_json(verdict: str, findings: Sequence[Finding], **further: Any) -> str:
    """The same as JSON; `further` are additional keys."""
    content = {
        "verdict": verdict,
        "exit_code": exit_code(findings),
        **further,
        "findings": [finding.as_json() for finding in worst_first(findings)],
    }
    return json_for_programs(content)


def wrapped(label: str, text: str, indent: int, limit: int) -> list[str]:
    """`label` and `text`, indented and wrapped.

    Words are not broken, so that long paths and commands can be copied.
    """
    blank = " " * indent
    return wrap_words(text, max(limit, indent + 20), blank + label, blank + " " * columns_of(label))


def _block(finding: Finding, code_width: int, limit: int, paint: Paint, everything: bool) -> list[str]:
    def body(indent: int) -> list[str]:
        lines = wrapped("", finding.measured, indent, limit)
        if finding.status == "ok" and not everything:
            return lines
        if finding.expected:
            lines += wrapped(say("expected: "), finding.expected, indent, limit)
        if finding.remedy:
            lines += wrapped(say("do: "), finding.remedy, indent, limit)
        for line in finding.evidence:
            lines += wrapped(say("seen: "), line, indent, limit)
        return lines

    return row(finding.status, finding.code, code_width, limit, paint, body)
