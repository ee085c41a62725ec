"""Very long lines: a failure at the end, after a progress bar, dots or data; and endless words."""

from __future__ import annotations

import re

from ascendtune.check.explain.log import level
from ascendtune.check.explain.log.line import without_colours
from ascendtune.check.explain.log.message_lines import LONGEST_TEXT, text_of

_END = 1000
"""Bytes that are read at the end of a long line, in addition to its beginning."""
_FAILURE = re.compile(
    r"(?:(?<![\w.'\"`(\[{\\/])|(?<=\.\.))(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): \S.*$"
    r"|(?<=\w)(?:Runtime|Value|Type|Key|Index|Attribute|Import|ModuleNotFound|FileNotFound|Memory|Assertion|OS|Connection|"
    r"Permission|Timeout)Error: \S.*$"  # appended without a blank
    r"|(?:Killed|Segmentation fault|Bus error|Illegal instruction|Floating point exception|Aborted)"
    r"(?: \(core dumped\))?$"
)
_ENDLESS_WORD = re.compile(rb"(?<!\S)(\S{1000})\S+|(?<![^\S\n])([^\S\n]{1000})[^\S\n]+")
_IS_DATA = re.compile(r"[\"'`\]})]\s*[,\]})]|[\"'`]\s*[:,]\s|\\n|[\"}\]]$")
"""Signs of a literal that quotes an error."""


def failure_at_end(line: bytes) -> str:
    """Failure at the end of a long line; empty if there is none, or the line is shorter."""
    if len(line) <= LONGEST_TEXT or level.is_warning_or_news(text_of(line)):
        return ""
    text = without_colours(line[-_END:]).decode(errors="replace").rstrip()
    failure = ""
    while (match := _FAILURE.search(text)) is not None:
        failure, text = match[0], match[0][1:]
    return "" if _IS_DATA.search(failure) or failure.count('"') % 2 or failure.count("`") % 2 else failure


def without_endless_words(text: bytes) -> bytes:
    """Cut words and runs of blanks to a thousand bytes: nothing that is searched for is so long, and a pattern that is
    tried at each letter takes quadratic time."""
    return _ENDLESS_WORD.sub(rb"\1\2", text)
