"""Findings as text for people and as JSON: the verdict first, then what it rests on."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from ascendtune.check.finding import Finding, exit_code, worst_first

Paint = Callable[[str, str], str]
"""(text, colour) -> text; how colours are made is the caller's."""

WIDE = 100
"""Columns of text that goes to a file."""
_COLOURS = {"failure": "red", "warning": "yellow", "unknown": "dim", "ok": "green"}
_STATUS_WIDTH = max(map(len, _COLOURS))
_NARROW = 80
"""Below this the measured value gets lines of its own."""


def as_text(verdict: str, findings: Sequence[Finding], *, columns: int | None, paint: Paint) -> str:
    """The verdict, then one block a finding, worst first: status, code, measured; expected, remedy and evidence below.

    Args:
        columns: width of the terminal, None where there is none.
    """
    limit = columns or WIDE
    lines = textwrap.wrap(verdict, limit, break_long_words=False, break_on_hyphens=False) or [verdict]
    lines = [paint(line, "bold") for line in lines]
    code_width = max((len(finding.code) for finding in findings), default=0)
    for finding in worst_first(findings):
        lines.extend(_block(finding, code_width, limit, paint))
    return "\n".join(lines)


def as_json(verdict: str, findings: Sequence[Finding], **further: Any) -> str:
    """The same for programs; `further` are keys of the caller's."""
    content = {
        "verdict": verdict,
        "exit_code": exit_code(findings),
        **further,
        "findings": [finding.as_json() for finding in worst_first(findings)],
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


def _block(finding: Finding, code_width: int, limit: int, paint: Paint) -> list[str]:
    status = paint(finding.status.ljust(_STATUS_WIDTH), _COLOURS[finding.status])
    if limit < _NARROW:
        indent = 4
        lines = [f"{status}  {finding.code}", *_wrapped("", finding.measured, indent, limit)]
    else:
        indent = _STATUS_WIDTH + code_width + 4
        first, *more = _wrapped("", finding.measured, indent, limit) or [""]
        lines = [f"{status}  {finding.code.ljust(code_width)}  {first.strip()}".rstrip(), *more]
    if finding.status == "ok":
        return lines
    if finding.expected:
        lines += _wrapped("expected: ", finding.expected, indent, limit)
    if finding.remedy:
        lines += _wrapped("do: ", finding.remedy, indent, limit)
    for line in finding.evidence:
        lines += _wrapped("seen: ", line, indent, limit)
    return lines


def _wrapped(label: str, text: str, indent: int, limit: int) -> list[str]:
    """Words are never cut: a path or a command that is longer than the line stays whole, to be copied."""
    blank = " " * indent
    return textwrap.wrap(
        text,
        max(limit, indent + 20),
        initial_indent=blank + label,
        subsequent_indent=blank + " " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )
