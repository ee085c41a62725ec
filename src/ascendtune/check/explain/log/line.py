"""Prefixes of a log line: its rank and its time."""

from __future__ import annotations

import re
from calendar import timegm
from dataclasses import dataclass
from pathlib import PurePath

from ascendtune.check.explain.log.report_of_tests import PYTEST

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|(?:#033|\^\[)?\[\d{1,2}(?:;\d{1,2})*m")
"""Also without the escape character, which is lost where logs are copied from a terminal; rsyslog writes #033, others
^[."""
_COLOURS_AS_BYTES = re.compile(_COLOURS.pattern.encode())
_PREFIX = re.compile(
    r"\s*(?:"
    r"\[(?:rank|Rank|RANK)[ :]?(?P<a>\d+)\]:?"  # torch
    r"|\[(?:default|trainer)(?P<b>\d+)(?:\|\d+)?\]:"  # torchrun --tee, torchx; the local rank
    r"|\[\d+,(?P<c>\d+)\]<std(?:err|out)>:"  # mpirun --tag-output
    r"|rank[ _]?(?P<d>\d+)(?:: | \| )"
    r"|(?P<e>\d{1,4}): (?=\s*\S)"  # srun --label
    r"|\((?P<actor>[^()\n]{0,80}\b(?:pid|rank|TP\d*)\s?[=:]?\s?\d+[^()\n]{0,80})\)"  # ray, vllm
    r"|(?:slurmstepd-)?"
    r"(?P<host>(?!slurmstepd-|E[A-Z]?\d|ERR)[A-Za-z][\w.-]*\d|\d+\.\d+\.\d+\.\d+): (?=\s*\S)"  # pdsh; no CANN code
    r"|(?P<container>[a-z][\w.-]*[-_]\d+) *\| (?=\s*\S)"  # docker compose
    r"|\[(?P<pod>pod/[\w.-]+/[\w.-]+)\] "  # kubectl logs --prefix
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<unit>[\w.-]+ (?:[\w.@/-]+\[\d+\]|kernel)): "  # journalctl
    rf"|E {{3,}}(?=[\w.]+(?:Error|Exception)\b)|{PYTEST}"
    r"|E +(?=(?:\w+\.)+\w*(?:Error|Exception): |(?:Assertion failed|Value error), )"  # pytest, copied from a terminal
    r"|> (?= {0,2}File \"| {4}[a-z_]|Traceback \(most recent|(?:\w+\.)*\w+(?:Error|Exception): )"  # quoted in a mail
    r"| {4}(?=CMake Error\b)| {6}(?=CMake Error\b|ERROR: |fatal: )"  # output of a build that pip shows
    r"|#\d{1,3} \d{1,5}\.\d{1,3} (?=\s*\S)"  # docker build
    r"|\d{1,5}\.\d{1,3} (?= *(?:[A-Za-z×│╰+\[]|/\w))"  # its summary
    r"|\[\w+\.py:\d+\] (?= *File \"| {4}\S|Traceback \(most recent|(?:\w+\.)*\w+(?:Error|Exception): )"  # vllm, cut
    r"|(?P<stage>\[[A-Za-z][\w-]{0,24}\]) (?=(?:ERROR|CRITICAL|WARNING|INFO) (?:\d{4}-)?\d\d-\d\d )"  # vllm-omni
    r"|\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?\]?:?(?: - | +)"
    r"(?:\[?(?:ERROR|CRITICAL|FATAL|WARNING|WARN|INFO|DEBUG)\]?:?(?: - | +))?(?=\[(?:rank|Rank|RANK)[ :]?\d+\])"
    r"|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)\s(?:std(?:err|out) [FP] )?"  # kubectl logs --timestamps, cri
    r"|(?:ERROR|CRITICAL|WARNING|INFO) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? "
    r"(?:\[[\w./]+:\d+\]|[\w./]+:\d+\]) ?"  # vllm
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? \| (?:ERROR|INFO) \| std(?:err|out) \| ?"  # FastChat
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+ - [\w.-]+ - (?:ERROR|CRITICAL|WARNING|INFO) - "  # logging
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:TP|DP|PP|EP)(?P<parallel>\d+)[^]\n]{0,12}\] "  # sglang
    r"|│ (?=[IWEF]\d{4} \d\d:\d\d:\d\d|\[?\d{4}[-/]\d\d[-/]\d\d[ T]|\[(?:INFO|WARN|ERROR)\] )"  # k9s
    r"|(?:[\[(<]?(?:[A-Za-z][A-Za-z_.-]{0,24}[ =:_-]?)?\d{1,5}[\])>]? ?[:|]? ?)(?=\[rank\d+\]:)"  # any, before torch's
    r"|(?P<file>[\w./@+-]{1,200}\.log):\d+:(?=\s*\S)"  # grep -n over several logs
    r")"
)
_PROGRESS = re.compile(r"[^|\n]{0,120}?\d%\|[^|\n]{0,400}\|[^\n\[]{0,60}\[[^]\n]{0,120}\](?=\s*\S)")
"""A progress bar without a line end: text of another program or the shell follows it."""
_RANK_INSIDE = re.compile(
    r"RankID:(\d+)|\[Rank (\d+)\]|(?<!(?i:lora) )(?<!tensor )(?<!input )(?<!matrix )\brank[=:]\s?(\d+)|"
    r"\bglobal_rank[=: ]+(\d+)"
)
_DEVICE = re.compile(
    r"\b(?:Device:(?=\d)|NPU (?=\d+[;,:])|GPU (?=\d+[ ;,:])|device(?:_id|Id)?[=: ]+(?=\d)|npu:(?=\d)|cuda:(?=\d))"
    r"(\d{1,3})(?!\w|[.:-]\w| ?(?:[KMGT]i?B|bytes|MHz)\b)"
)
"""Number of a device; not a PCI address, size or version."""
_PID = re.compile(r"\bPID: ?(\d+)")
_ACTOR_RANK = re.compile(r"\b(?:rank|TP)\s?[=:]?\s?(\d+)")
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[_-]?(\d+)|(?:^|[^a-z])worker[_-](\d+)", re.IGNORECASE)
# A pattern that begins with a literal is searched for ten times faster than one that begins with \b.
_TIME = re.compile(r"20(?<!\w20)\d\d[-/](\d\d)[-/](\d\d)[-T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_GLOG_TIME = re.compile(r"\b[EWIF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_ASCEND_WORDS = ("ascend", "npu", "cann", "hccl", "aclnn", "aclrt", "aclerror")
_ASCEND = re.compile(r"(?<![a-z])(?:ascend(?!ing|ant|tune)|npu(?!t)|cann(?![a-z]))|hccl|aclnn|aclrt|aclerror")
_ASCEND_CODE = re.compile(r"E(?<!\wE)(?:[A-Z]\d{4}: |RR\d{5} )")
_LONGEST_PREFIXES = 4
_DISTRIBUTED_LOGS = re.compile(r"/(\d+)/std(?:err|out)\.log$")
"""torchrun --log-dir: attempt_0/RANK/stderr.log"""
_ANY_DIGIT = re.compile(r"\d")
_INNER_PREFIXES = 8
_EXCEPTION_NAME = re.compile(r"\w+ +$|\W+$")
"""IPython and rich print the exception's name, or a frame, only before the first line."""


@dataclass(frozen=True)
class Line:
    """A line without the prefixes of launchers and loggers."""

    speaker: str
    """Identifies the speaker: rank, process and host of the prefixes, without times and levels."""
    message: str
    """The text after the prefixes."""
    rank: int | None = None
    """Rank (or local rank) in a prefix."""
    host: str | None = None


def read(text: str) -> Line:
    """Remove the prefixes of a line, and a progress bar before or after them."""
    text = _COLOURS.sub("", text) if "\x1b" in text or "[0m" in text else text
    start, speaker, rank, host = 0, "", None, None
    has_bar = "%|" in text
    for _ in range(_LONGEST_PREFIXES):
        match = _PREFIX.match(text, start) or (_PROGRESS.match(text, start) if has_bar else None)
        if match is None or match.end() == start:
            break
        start = match.end()
        if match.lastgroup is not None:
            name = f"{match.lastgroup} {match[match.lastgroup]} "
            # The same rank may be named before and after a bar.
            speaker += "" if speaker.endswith(name) else name
            named = _rank_of(match)
            rank = rank if named is None else named
            host = match["host"] or host
    # One blank belongs to the prefix; more of them are the indentation of a traceback.
    rest = text[start:]
    if start and rest.startswith(" ") and not text[start - 1].isspace():
        rest = rest[1:]
    return Line(speaker.strip(), rest, rank, host)


def bar_in(text: str) -> str:
    """The progress bar at the beginning of a line, with its prefixes, if text of another process follows it; else
    empty."""
    prefix = _PREFIX.match(text) if "%|" in text else None
    bar = _PROGRESS.match(text, prefix.end()) if prefix else None
    return text[: bar.end()] if bar and _PREFIX.match(text, bar.end()) else ""


def without_colours(text: bytes) -> bytes:
    """Remove colour codes as `read` does; the number of lines stays the same."""
    return _COLOURS_AS_BYTES.sub(b"", text)


def _rank_of(prefix: re.Match[str]) -> int | None:
    for name in ("a", "b", "c", "d", "e", "parallel"):
        if prefix[name] is not None:
            return int(prefix[name])
    if prefix["file"]:
        return rank_of_file(prefix["file"])
    inner = _ACTOR_RANK.search(prefix["actor"]) if prefix["actor"] else None
    return int(inner[1]) if inner else None


def rank_in(text: str) -> int | None:
    """Rank that the line itself names as its own."""
    match = _RANK_INSIDE.search(text)
    return int(next(filter(None, match.groups()))) if match else None


def rank_of_file(name: str) -> int | None:
    """Rank of a log, by the name of its file."""
    if match := _DISTRIBUTED_LOGS.search(name):
        return int(match[1])
    match = _RANK_IN_NAME.search(PurePath(name).stem)
    return int(next(filter(None, match.groups()))) if match else None


def device_in(text: str) -> int | None:
    """Number of the device that a line names; None if it names several."""
    devices = {int(match[1]) for match in _DEVICE.finditer(text)}
    return devices.pop() if len(devices) == 1 else None


def speaks_of_ascend(text: str) -> bool:
    """Whether a line names the chip, its software, or one of its error codes; "ascendtune" does not count."""
    lower = text.lower()
    named = any(map(lower.__contains__, _ASCEND_WORDS)) and _ASCEND.search(lower) is not None
    return named or _ASCEND_CODE.search(text) is not None


def time_of(text: str) -> float | None:
    """Seconds since the beginning of the year, for ordering only: the time zone is unknown, and glog writes no year."""
    if match := _TIME.search(text):
        return _seconds(*match.groups())
    if match := _GLOG_TIME.search(text):
        return _seconds(*match.groups())
    return None


def _seconds(month: str, day: str, hour: str, minute: str, second: str, fraction: str | None) -> float | None:
    """None for an invalid month: before its logging is set up, absl writes month 0."""
    if not 1 <= int(month) <= 12:
        return None
    whole = timegm((1970, int(month), int(day), int(hour), int(minute), int(second)))
    return whole + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)


class RanksOfProcesses:
    """Ranks by process id: CANN writes the process id in every line of a process, the rank only in one."""

    def __init__(self) -> None:
        self._by_pid: dict[str, int] = {}

    def rank_of(self, text: str, *named: int | None, last: int | None) -> int | None:
        """The first known one of `named`, else the rank of the line or its process, else `last`."""
        inside, pid = rank_in(text), _PID.search(text)
        if pid is not None and inside is not None:
            self._by_pid[pid[1]] = inside
        elif pid is not None:
            inside = self._by_pid.get(pid[1])
        return next((rank for rank in (*named, inside, last) if rank is not None), None)


class InnerPrefixes:
    """Unknown prefixes of loggers and schedulers, learnt from the lines of tracebacks."""

    def __init__(self) -> None:
        self._shapes: list[str] = []

    def learn(self, prefix: str) -> None:
        """Learn the text before the heading of a traceback, or before a frame."""
        shape = _ANY_DIGIT.sub("0", prefix)
        known = shape in self._shapes or len(self._shapes) == _INNER_PREFIXES
        if prefix and not known and not _EXCEPTION_NAME.match(prefix):
            self._shapes.append(shape)

    def without(self, message: str) -> str:
        for shape in self._shapes:
            if _ANY_DIGIT.sub("0", message[: len(shape)]) == shape:
                return message[len(shape) :]
        return message
