"""Complaints that a job outlives: those of a launch script's commands, and of requests that are tried again."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ascendtune.check.explain.event import Event

_STEPS = 3
"""Figures of steps, or progress bars, after which a job is believed to have gone on."""
_PROGRESS = re.compile(
    r"loss['\"]?[ =:]{1,4}\d|\b(?:step|iteration|iter|epoch)s?['\"]?[ =:/\[(]{1,3}\d|"
    r"\d%\||\d ?(?:it/s|s/it)\b",
    re.IGNORECASE,
)
_COMMANDS = (
    "ldconfig|sysctl|mkdir|chmod|chown|ln|cp|mv|rm|cat|mount|umount|modprobe|lspci|ibstat|ibv_devinfo|numactl|kill|"
    "pkill|which|wget|curl|git|hostname|ulimit|source|module|conda|nvidia-smi|npu-smi"
)
_OF_COMMAND = re.compile(
    rf"(?:\S+: )?(?:line )?(?:\d+: )?(?:(?:\S*/)?(?P<command>[\w.+-]+): (?:command )?not found|"
    rf"command not found: (?P<word>[\w.+-]+))$|"
    rf"(?:\S+: line \d+: )?(?:\S*/)?(?P<of_system>{_COMMANDS})(?:\.real)?: |"
    r"E: Could not (?:open lock file|get lock) |"
    r"fatal: (?P<git>not a git repository|detected dubious ownership|unsafe repository)"
)
"""What a shell, or a command of the system that a script called, says: without `set -e` the script goes on."""
_TRIED_AGAIN = re.compile(r"\bretry(?:ing)?\b|\btry(?:ing)? again (?:in|after)\b", re.IGNORECASE)
_BUILDS = ("build", "packages", "package-managers")
"""Families of failures that a missing command may be behind."""


def mark_outlived(events: Sequence[Event], tail: str, lines: int) -> None:
    """Mark the complaints after which the log shows that the job made steps.

    Args:
        tail: the last lines of the log.
        lines: of the whole log.
    """
    complaints = [event for event in events if _may_be_outlived(event)]
    if not complaints:
        return
    rows = tail.removesuffix("\n").split("\n")
    above = lines - len(rows)
    for event in complaints:
        after = "\n".join(rows[max(0, event.last - above) :])
        steps = sum(1 for _, _ in zip(_PROGRESS.finditer(after), range(_STEPS), strict=False))
        event.survived = event.survived or steps == _STEPS


def gives_way(event: Event, others: Sequence[Event]) -> bool:
    """Whether a later exception ended the job, and not the command of its script that failed."""
    found = _OF_COMMAND.match(event.text) if event.trace is None else None
    if found is None:
        return False
    command = found["command"] or found["word"] or found["of_system"] or (found["git"] and "git") or "apt"
    return any(
        other.is_raised
        and other.source == event.source
        and other.number > event.last
        and other.hit.entry.family not in _BUILDS
        and command not in other.text
        for other in others
    )


def _may_be_outlived(event: Event) -> bool:
    return event.trace is None and (
        _OF_COMMAND.match(event.text) is not None or _TRIED_AGAIN.search(event.text) is not None
    )
