"""Finds the line of a log that sets a value or name in a message: a command line, a printed configuration, arguments,
the environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.scan import Scan
from ascendtune.check.explain.language import say
from ascendtune.check.explain.log import level

_QUOTED = re.compile(r"(?<!\w)(?:'([^'\n]{3,120})'|\"([^\"\n]{3,120})\"|`([^`\n]{3,120})`)(?!\w)")
_NAME = re.compile(r"(?<![\w/.])(?:--[a-z][\w-]+|[A-Za-z]+_[A-Za-z_0-9]{2,}|[A-Z]+[a-z]+[A-Z]\w{3,})(?![\w(/]|\.\w)")
"""Options, and names with an underscore or inner capitals."""
_NUMBER = re.compile(r"(?<![\w./:+-])\d{2,9}(?![\w./:]|\.\d)")
_VALUE_BEHIND = r"['\"]?\s*(?:=|:|=>|\s)\s*(?P<value>\[[^\]\n]{0,80}\]|['\"][^'\"\n]{0,80}['\"]|[^\s,;()}\]'\"]+)"
_SETS = re.compile(r"(?:^|\s)--?[A-Za-z][\w-]*[ =]|\w['\"]?\s?[=:]\s?\S|\bexport \w+=|^\s*(?:[+$#>] |\w+@\S+[:~$#])")
"""A line with settings: options, NAME=VALUE, KEY: VALUE, a command after a prompt."""
_NOT_SETTING = re.compile(
    r"Traceback|^\s*File \"|\b(?:[A-Z]\w*)?(?:Error|Exception|Warning)\b|\bFAILED\b|\b[Ee]rror\b|\bfailed\b|"
    r"[Ii]nvalid|_Error_|"
    r"^\s*(?:raise|return|assert|def|if|self\.|from|import)\b|\bat 0x[0-9a-f]+"
)
_LISTS = re.compile(r"\[[^\]\n]*,[^\]\n]*\]")
"""Commands and lists of valid values: the relevant word in them is unknown."""
_COMMON = frozenset(
    (
        "none",
        "true",
        "false",
        "null",
        "default",
        "auto",
        "model",
        "data",
        "loss",
        "train",
        "cuda",
        "file",
        "name",
        "type",
    )
)
_LEAST_OF_QUOTED = 3
_AROUND = 48
"""Characters of the line that are shown on each side."""
_LONGEST_LINE = 20_000
_MOST_TOKENS = 6

_SHOWN_NAME = "the log shows {name} at line {line}: `{shown}`: change it there, where that is set"
_SHOWN_VALUE = "the log shows where the value comes from, line {line}: `{shown}`: correct it there"


def place_of_setting(event: Event, scans: Sequence[Scan], message: str) -> str:
    """Remedy with the line above `event` that sets a value or name in `message`; empty if there is none."""
    scan = next((each for each in scans if each.name == event.source), None)
    if scan is None:
        return ""
    begin = event.trace.first_line if event.trace is not None else event.number
    lines = [each for each in _lines_of(scan) if each[0] < begin and _may_set(each[1])]
    if not lines:
        return ""
    for token, is_name in _tokens_of(message):
        pattern = _pattern_of(token, is_name=is_name)
        for number, line in lines:
            if (match := pattern.search(line)) is not None:
                shown = _fragment(line, match.start(), match.end())
                if is_name:
                    return say(_SHOWN_NAME, name=token, line=number, shown=shown)
                return say(_SHOWN_VALUE, line=number, shown=shown)
    return ""


def _tokens_of(message: str) -> list[tuple[str, bool]]:
    """(token, whether it is a name) of the quoted values of a message, then of its names."""
    tokens: dict[str, bool] = {}
    for match in _QUOTED.finditer(_LISTS.sub(" ", message)):
        quoted = next(filter(None, match.groups())).strip()
        if quoted.lower() not in _COMMON and len(quoted) >= _LEAST_OF_QUOTED:
            tokens.setdefault(quoted, _NAME.fullmatch(quoted) is not None)
    for match in _NAME.finditer(message):
        tokens.setdefault(match[0], True)
    return list(tokens.items())[:_MOST_TOKENS]


def _pattern_of(token: str, *, is_name: bool) -> re.Pattern[str]:
    if not is_name:
        return re.compile(rf"(?:[=:\[,]\s*|--[\w-]+\s+)['\"]?{re.escape(token)}(?![\w/-])")
    parts = re.split(r"[-_]", token.lstrip("-"))
    # An option is written with hyphens, its variable with underscores.
    name = "[-_]".join(map(re.escape, parts))
    return re.compile(rf"(?<![A-Za-z0-9]){name}(?![\w-]){_VALUE_BEHIND}", re.IGNORECASE)


def _may_set(line: str) -> bool:
    is_setting = _SETS.search(line) is not None and _NOT_SETTING.search(line) is None
    return is_setting and not level.is_warning(line)


def _lines_of(scan: Scan) -> Iterator[tuple[int, str]]:
    """Lines at the beginning and the end of the log, each with its number."""
    last = scan.last_lines
    # The last line of the beginning may be cut off.
    first = enumerate(scan.head.split("\n")[:-1], scan.lines - scan.lines_read + 1)
    for number, line in (*((number, line) for number, line in first if number < last[0][0]), *last):
        yield number, line[:_LONGEST_LINE]


def _fragment(line: str, start: int, end: int) -> str:
    """Words around a match, without backticks."""
    left = line.rfind(" ", 0, max(0, start - _AROUND)) + 1 if start > _AROUND else 0
    right = line.find(" ", min(len(line), end + _AROUND))
    right = len(line) if right < 0 or right > end + 3 * _AROUND else right
    left = left if start - left <= 3 * _AROUND else start
    right = right if right - end <= 3 * _AROUND else end
    shown = " ".join(line[left:right].split()).replace("`", "'")
    return f"{'… ' if left else ''}{shown}{' …' if right < len(line) else ''}"
