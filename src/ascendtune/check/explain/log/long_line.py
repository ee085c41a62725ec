"""The end of a very long line: what a program wrote behind a progress bar, dots or data that did not end their line."""

from __future__ import annotations

import re

from ascendtune.check.explain.log import level
from ascendtune.check.explain.log.line import without_colours
from ascendtune.check.explain.log.message_lines import LONGEST_TEXT

_END = 1000
"""Bytes at the end of a long line that are read, besides those of its beginning."""
_FAILURE = re.compile(
    r"(?:(?<![\w.'\"`(\[{\\/])|(?<=\.\.))(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): \S.*$"
    r"|(?<=\w)(?:Runtime|Value|Type|Key|Index|Attribute|Import|ModuleNotFound|FileNotFound|Memory|Assertion|OS|Connection|"
    r"Permission|Timeout)Error: \S.*$"  # written on without a blank
    r"|(?:Killed|Segmentation fault|Bus error|Illegal instruction|Floating point exception|Aborted)"
    r"(?: \(core dumped\))?$"
)
_IS_DATA = re.compile(r"[\"'`\]})]\s*[,\]})]|[\"'`]\s*[:,]\s|\\n|[\"}\]]$")
"""Signs of a literal, in which an error is quoted."""


def failure_at_end(line: bytes) -> str:
    """The failure that a long line ends with; empty if it ends with none, or is shorter."""
    if len(line) <= LONGEST_TEXT or level.is_warning_or_news(line[:LONGEST_TEXT].decode(errors="replace")):
        return ""
    text = without_colours(line[-_END:]).decode(errors="replace").rstrip()
    found = ""
    while (match := _FAILURE.search(text)) is not None:
        found, text = match[0], match[0][1:]
    return "" if _IS_DATA.search(found) or found.count('"') % 2 or found.count("`") % 2 else found
