"""Very long lines: the failure at the end of one, behind a progress bar, dots or data; and words without end in one."""

from __future__ import annotations

import re

from ascendtune.check.explain.log import level
from ascendtune.check.explain.log.line import without_colours
from ascendtune.check.explain.log.message_lines import LONGEST_TEXT, text_of

_END = 1000
"""Bytes at the end of a long line that are read, besides those of its beginning."""
_FAILURE = re.compile(
    r"(?:(?<![\w.'\"`(\[{\\/])|(?<=\.\.))(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): \S.*$"
    r"|(?<=\w)(?:Runtime|Value|Type|Key|Index|Attribute|Import|ModuleNotFound|FileNotFound|Memory|Assertion|OS|Connection|"
    r"Permission|Timeout)Error: \S.*$"  # written on without a blank
    r"|(?:Killed|Segmentation fault|Bus error|Illegal instruction|Floating point exception|Aborted)"
    r"(?: \(core dumped\))?$"
)
_ENDLESS_WORD = re.compile(rb"(?<!\S)(\S{1000})\S+|(?<![^\S\n])([^\S\n]{1000})[^\S\n]+")
_IS_DATA = re.compile(r"[\"'`\]})]\s*[,\]})]|[\"'`]\s*[:,]\s|\\n|[\"}\]]$")
"""Signs of a literal, in which an error is quoted."""


def failure_at_end(line: bytes) -> str:
    """The failure that a long line ends with; empty if it ends with none, or is shorter."""
    if len(line) <= LONGEST_TEXT or level.is_warning_or_news(text_of(line)):
        return ""
    text = without_colours(line[-_END:]).decode(errors="replace").rstrip()
    found = ""
    while (match := _FAILURE.search(text)) is not None:
        found, text = match[0], match[0][1:]
    return "" if _IS_DATA.search(found) or found.count('"') % 2 or found.count("`") % 2 else found


def without_endless_words(text: bytes) -> bytes:
    """The text with the first thousand bytes of words and blanks that are longer: no program writes such a word of
    what is looked for, and patterns that are tried from each of its letters take the square of its length."""
    return _ENDLESS_WORD.sub(rb"\1\2", text)
