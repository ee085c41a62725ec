"""What stands around the words of a log line: which rank said it, and when."""

from __future__ import annotations

import re
from calendar import timegm
from pathlib import PurePath

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(
    r"\s*(?:"
    r"\[(?:rank|Rank|RANK)[ :]?(?P<a>\d+)\]:?"  # torch
    r"|\[default(?P<b>\d+)\]:"  # torchrun --tee; the local rank
    r"|\[\d+,(?P<c>\d+)\]<std(?:err|out)>:"  # mpirun --tag-output
    r"|rank[ _]?(?P<d>\d+)(?:: | \| )"
    r"|(?P<e>\d{1,4}): (?=\S)"  # srun --label
    r"|\((?P<actor>[^()\n]{0,80}\b(?:pid|rank|TP\d*)\s?[=:]?\s?\d+[^()\n]{0,80})\)"  # ray, vllm
    r"|(?P<host>(?!E[A-Z]?\d|ERR)[A-Za-z][\w.-]*\d): (?=\S)"  # pdsh under deepspeed; not a code of CANN
    r"|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)\s+(?:std(?:err|out) [FP] )?"  # kubectl logs --timestamps, cri
    r"|(?:ERROR|CRITICAL|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[\w./]+:\d+\]|[\w./]+:\d+\]) ?"  # vllm
    r")"
)
_RANK_INSIDE = re.compile(r"RankID:(\d+)|\[Rank (\d+)\]|\brank[=:]\s?(\d+)|\bglobal_rank[=: ]+(\d+)")
_DEVICE = re.compile(
    r"\bDevice:(\d+)|\bNPU (\d+)[;,:]|\bGPU (\d+)[ ;,:]|\bdevice(?:_id|Id)?[=: ]+(\d+)|\bnpu:(\d+)|\bcuda:(\d+)"
)
_ACTOR_RANK = re.compile(r"\b(?:rank|TP)\s?[=:]?\s?(\d+)")
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[_-]?(\d+)|(?:^|[^a-z])worker[_-](\d+)", re.IGNORECASE)
_TIME = re.compile(r"\b20\d\d[-/](\d\d)[-/](\d\d)[-T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_GLOG_TIME = re.compile(r"\b[EWIF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_LONGEST_PREFIXES = 4
_DISTRIBUTED_LOGS = re.compile(r"/(\d+)/std(?:err|out)\.log$")
"""torchrun --log-dir: attempt_0/RANK/stderr.log"""


def split_prefix(text: str) -> tuple[str, str]:
    """(who says it, what is said): the prefixes that launchers put before a line are taken off.

    The first part is only good for telling speakers apart; `rank_of` makes a rank of it.
    """
    text = _COLOURS.sub("", text) if "\x1b" in text else text
    start = 0
    for _ in range(_LONGEST_PREFIXES):
        match = _PREFIX.match(text, start)
        if match is None or match.end() == start:
            break
        start = match.end()
    if start == 0:
        return "", text
    # One blank belongs to the prefix; more of them are the indentation of a traceback.
    rest = text[start:]
    return text[:start], rest[1:] if rest.startswith(" ") and not text[start - 1].isspace() else rest


def rank_of(prefix: str) -> int | None:
    """The rank (or local rank) that a prefix names."""
    rank = None
    start = 0
    while match := _PREFIX.match(prefix, start):
        if match.end() == start:
            break
        start = match.end()
        for name in "abcde":
            if match[name] is not None:
                rank = int(match[name])
        if match["actor"] and (inner := _ACTOR_RANK.search(match["actor"])):
            rank = int(inner[1])
    return rank


def rank_in(text: str) -> int | None:
    """A rank that the line itself names as its own."""
    match = _RANK_INSIDE.search(text)
    return int(next(filter(None, match.groups()))) if match else None


def rank_of_file(name: str) -> int | None:
    """The rank whose log a file is, by its name."""
    if match := _DISTRIBUTED_LOGS.search(name):
        return int(match[1])
    match = _RANK_IN_NAME.search(PurePath(name).stem)
    return int(next(filter(None, match.groups()))) if match else None


def device_in(text: str) -> int | None:
    match = _DEVICE.search(text)
    return int(next(part for part in match.groups() if part is not None)) if match else None


def host_of(prefix: str) -> str | None:
    match = _PREFIX.match(prefix)
    return match["host"] if match else None


def time_of(text: str) -> float | None:
    """Seconds since the year began; good for ordering only, for the zone is not known and glog writes no year."""
    if match := _TIME.search(text):
        return _seconds(*match.groups())
    if match := _GLOG_TIME.search(text):
        return _seconds(*match.groups())
    return None


def _seconds(month: str, day: str, hour: str, minute: str, second: str, fraction: str | None) -> float:
    whole = timegm((1970, int(month), int(day), int(hour), int(minute), int(second)))
    return whole + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)
