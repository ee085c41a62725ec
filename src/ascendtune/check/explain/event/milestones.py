"""Milestones: lines of a program that has done its work, or runs: an installation, a download, a server.

If such a line follows an error of a script's command, a request or a cluster's scheduler, the job survived the error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ascendtune.check.explain.event import posted
from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.fatal import was_logged
from ascendtune.check.explain.event.script_commands import is_of_script
from ascendtune.check.explain.log import level
from ascendtune.check.explain.log import line as lines_of

_INSTALLED = (
    r"Successfully (?:installed|built|tagged) \S|Installed \d+ packages? in |Complete!$|Setting up \S+ \(\S+\) \.\.\.|"
    r"\d+ (?:upgraded|newly installed), \d+ |Processing triggers for \S|Executing transaction:.* done|"
    r"(?:writing image|naming to) \S+(?: \S+)? done\b|\[100%\] Built target |-- Build files have been written to: |"
    r"\S+(?: package)?:? .{0,80}\binstall(?:ed)? success(?:fully)?\b"
)
_FETCHED = (
    r".*['’] saved \[\d+|total size is \S+ +speedup is |(?:.* )?100% ?[|(].*|100 +\S+ +100 +\S+ |"
    r"Already up[- ]to[- ]date\.|"
    r"Fetched [\d.,]+ ?\w*B in |.*\b[Dd]ownload(?:ed)? (?:\w+ )?(?:successfully|completed?)\b|"
    r"(?:.* )?Status: Downloaded newer image for |Transferred:.*\b100%|.*\bAttempt \d+/\d+ succeeded|"
    r"[0-9a-f]{6}\|OK +\|"  # aria2
)
_SERVES = (
    r".*\bApplication startup complete|"
    r".*\b(?:Uvicorn|Gunicorn|Running|[Ll]istening) (?:running )?(?:on|at):? (?:http|\S*:\d)|"
    r".*\b(?:[Ss]erver|[Ss]ervice|[Cc]luster|[Ee]ngine|[Dd]atabase) (?:is |has )?(?:now )?"
    r"(?:up|ready|running|started|listening|healthy|fired up|reachable)\b(?! to (?:stop|shut))|"
    r"(?:\S+ ){1,4}(?:is|has become) (?:now )?(?:up|ready|reachable|alive)\W*$|Connection to \S+ .*\bsucceeded!|"
    r".*\baccepting connections$|To see the GUI go to: |"
    r".*\bRay runtime started|.*\bStarted (?:GRPCInferenceService|HTTPService)|"
    r".*\"(?:GET|POST) \S+ HTTP/[\d.]+\" 2\d\d\b|PONG$"
)
_OF_CLUSTER = (
    r"srun: (?:Step created for |job \d+ has been allocated )|"
    r"(?:\d\w* +| *)Normal +(?:Scheduled|Started) .*|Release \"\S+\" has been upgraded\.|"
    r"\S+ +(?P<ready>[1-9]\d*)/(?P=ready) +Running\b|"
    r"STATUS: deployed$|\S+ condition met$| ?Container \S+  ?(?:Started|Healthy|Running)$"
)
_CHECKED = (
    r"(?:.* )?(?:all )?(?:health )?checks? (?:has |have )?(?:passed|succeeded)\b|# Out of bounds values : 0 OK|"
    r"# Avg bus bandwidth +: +\d"
)
_RUNS = re.compile("|".join((_SERVES, _CHECKED)))
"""Milestones of the program itself, in contrast to those of its installation."""
_MILESTONE = re.compile("|".join((_INSTALLED, _FETCHED, _OF_CLUSTER, _RUNS.pattern)))
_ENDED_WELL = re.compile(
    r"\W*(?:[\w.-]+ ){0,5}(?:done|finished|completed|succeeded|downloaded)(?:, no errors)?\W*$|"
    r".*\b(?:training|job|run|download|evaluation|benchmark|export|conversion|build|process \d+) (?:is |was |has )?"
    r"(?:done\b|finished\b|completed?\b|succeeded\b|exits successfully)|"
    r".*\b(?:saved|written|exported) (?:to|in|as) \S|(?:.*\W)?exit(?:ed)? (?:with )?(?:code|status)[: ]+0\b|"
    r".*\btrain_runtime\b|(?:=+ )?\d+ passed\b(?!.*\b(?:failed|errors?)\b)",
    re.IGNORECASE,
)
"""Last lines of programs that have done their work."""
_LAST = 6
"""Lines at the end of a log that are searched for such a line."""
_FAR = 8
"""Lines between such a line and an earlier error from which on the error probably did not matter."""
_WHEEL = re.compile(
    r"(?:Failed (?:building wheel for|to build)|Could not build wheels for|Building wheel for) [`']?(?P<name>[\w.-]*\w)"
)
_INSTALLED_BY_PIP = re.compile(
    r"Successfully installed (?P<names>.*)|Running setup\.py install for (?P<name>\S*\w):? .*\bdone\b"
)
_OF_IMPORT = re.compile(r"\bimport|No module named", re.IGNORECASE)
_GOES_ON_AFTER = 3
"""Lines after a failed import that a program does not write if it ends because of it."""
_SIGN = re.compile(
    r"uccess|nstall|upgraded|^100 |omplete|Setting up|trigger|done|[Bb]uil[dt]|saved|speedup|100%|up.to.date|Fetched|"
    r"ownload|startup|"
    r"\|OK|Transferred|ing (?:on|at)|"
    r"[Ss]er(?:ver|vice)|[Ee]ngine|luster|atabase|runtime|Started|HTTP/|PONG|Normal|Running|deployed|"
    r"condition met|Healthy|check|# |is now|is up|is ready|succe|accepting|GUI|srun|reachable|alive"
)
"""Words, one of which is in each milestone; most lines have none."""
_OF_REQUEST = re.compile(
    r"\bconnect(?:ion)?\b.{0,60}\b(?:refused|reset|timed? ?out|failed|aborted|within)\b|\btimed? ?out\b|"
    r"\b(?:could ?n[o']t|can't|cannot|failed to|unable to) (?:connect|resolve|reach)\b|\btemporary failure\b|"
    r"\bname or service not known\b|\b(?:unreachable|unavailable)\b|"
    r"\b(?:429|50[234])\b.{0,30}\b(?:server|client|error|service|bad|gateway|too)\b|"
    r"\bretry(?:ing)?\b|\bfailed to (?:fetch|download|copy)\b|\b(?:down|up)load aborted\b|"
    r"\berrorCode=\d+ (?:URI=|Time)|\bAttempt \d+/\d+ failed\b|\bwaiting for cache lock\b|"
    r"\bnot available now\b|\banother operation\b.* in progress\b|\bexternally-managed-environment\b",
    re.IGNORECASE,
)
"""Words of a request without an answer, or of something that is impossible now or in this way: programs retry, or
use another server."""
_OF_RANKS = re.compile(r"\b(?:NCCL|RCCL|HCCL|Hccl\w+|[Gg]loo|TCPStore|c10d|ProcessGroup\w*|[Ww]atchdog|E[A-Z]\d{4})\b")
"""Words of ranks that wait for each other: later lines of another rank show nothing about this one."""
_OF_EVENTS = re.compile(r"\s*(?:\d\w* +)?Warning\s+[A-Z][A-Za-z]+\s")
"""A row of `kubectl describe` and `kubectl get events`."""
_OF_COPY = re.compile(r"Read -1, expected \d+, errno = ")
"""Open MPI's error after which it copies in another way."""
_BEFORE = re.compile(r"^(?:#\d+ (?:[\d.]+ )?|\[[^\]]*\] )")
_OF_END = ("wrapper", "consequence")
"""Kinds of messages around a failure, or because of one."""


@dataclass(frozen=True)
class Milestones:
    """Line numbers of milestones, in ascending order."""

    all: Sequence[int]
    runs: Sequence[int]
    """Milestones of the program itself."""
    well: int = 0
    """Number of the last line, near the end of the log, of a program that has done its work; 0 if there is none."""
    installed: str = ""
    """Packages that pip reports as installed."""
    last: int = 0
    """Number of the last line that is not blank."""
    is_post: bool = False
    """Whether the log is a person's post: the lines after an error may not belong to the program."""
    ends_badly: bool = False
    """Whether the log ends with words of failure."""

    def with_ends(self, ends: Sequence[int]) -> Milestones:
        """Add the lines of a training's end."""
        return replace(self, all=sorted({*self.all, *ends}), runs=sorted({*self.runs, *ends}))


def milestones_in(numbered: Sequence[tuple[int, str]]) -> Milestones:
    """Find the milestones among the last lines of a log, given with their numbers."""
    rows = [row for _, row in numbered]
    may_be = ((number, _said(row)) for number, row in numbered if _SIGN.search(row) is not None)
    milestones = [(number, message) for number, message in may_be if _MILESTONE.match(message)]
    last = [(number, row, lines_of.read(row).message) for number, row in numbered if row.strip()][-_LAST:]
    return Milestones(
        all=[number for number, _ in milestones],
        runs=[number for number, message in milestones if _RUNS.match(message)],
        well=max((number for number, _, message in last if _ENDED_WELL.match(message)), default=0),
        installed=" ".join(each["names"] or each["name"] for row in rows if (each := _INSTALLED_BY_PIP.search(row))),
        last=last[-1][0] if last else 0,
        is_post=posted.is_post(rows),
        ends_badly=bool(last) and level.are_last_words(*last[-1][1:]),
    )


def was_overcome(event: Event, milestones: Milestones, events: Sequence[Event]) -> bool:
    """Whether a milestone follows an error that programs survive, and no unexplained end follows."""
    if event.trace is not None or milestones.ends_badly:
        return False
    if _is_done_without(event, milestones):
        return not any(_is_unexplained_end(other) and other.last > event.last for other in events)
    if not (milestones.all and event.last < milestones.all[-1]):
        return False
    # A quoted exception was caught.
    runs_without = event.is_quoted and bool(milestones.runs) and event.last < milestones.runs[-1]
    if not (event.weak or is_of_request(event) or runs_without or is_of_script(event)):
        return False
    return not any(_is_unexplained_end(other) and other.last > event.last for other in events)


def _is_done_without(event: Event, milestones: Milestones) -> bool:
    """Whether the program has done its work despite an error: it did much more after it, pip has installed the package
    in another way, or the module that could not be imported was not needed."""
    if (wheel := _WHEEL.search(event.text)) is not None:
        return re.search(rf"(?<![\w.-]){re.escape(wheel['name'])}(?![\w.]|-[a-z])", milestones.installed) is not None
    if milestones.is_post or not is_in_passing(event):
        return False
    is_far = milestones.well - event.last >= _FAR
    is_optional = event.is_quoted and _OF_IMPORT.search(event.text) and milestones.last - event.last >= _GOES_ON_AFTER
    return bool(is_far or is_optional)


def is_followed(event: Event, events: Sequence[Event]) -> bool:
    """Whether anything failed after `event`."""
    later = (other for other in events if other.last > event.last and not (other.weak or other.survived))
    return any(other.entry.kind != "notice" for other in later)


def is_of_ranks(event: Event) -> bool:
    """Whether an event is an error of ranks that wait for each other."""
    return event.entry.waits or _OF_RANKS.search(event.text) is not None


def is_in_passing(event: Event) -> bool:
    """Whether an event is unknown, or not logged as an error; and neither the end of a process nor an error of ranks,
    which other ranks survive for a while."""
    is_grave = event.is_known and event.entry.kind != "detail" and level.is_error(event.text, event.text)
    return was_logged(event) and event.trace is None and not (is_grave or is_of_ranks(event))


def is_of_request(event: Event) -> bool:
    """Whether an event is an error of a request that is retried, or made in another way."""
    if event.trace is not None or is_of_ranks(event):
        return False
    return any(each.search(event.text) for each in (_OF_REQUEST, _OF_EVENTS, _OF_COPY))


def _said(row: str) -> str:
    """Remove a time, a level, or the number of a BuildKit step from a row."""
    return _BEFORE.sub("", row.rstrip())


def _is_unexplained_end(event: Event) -> bool:
    is_told = event.weight == 0 and event.trace is not None
    return not (event.survived or event.weak or is_told) and (event.entry.kind in _OF_END or not event.is_known)
