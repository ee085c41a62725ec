"""Complaints that a job outlives: those of a launch script's commands, of requests that are tried again, and others
after which the training went on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ascendtune.check.explain import line as lines_of
from ascendtune.check.explain.event import Event

_STEPS = 3
"""Figures of steps, or progress bars, after which a job is believed to have outlived a command of its script."""
_LOSSES = 5
"""Losses of a training after which it is believed to have outlived any other complaint."""
_PROGRESS = re.compile(
    r"loss['\"]?[ =:]{1,4}\d|\b(?:step|iteration|iter|epoch)s?['\"]?[ =:/\[(]{1,3}\d|\d%\||\d ?(?:it/s|s/it)\b",
    re.IGNORECASE,
)
_LOSS = re.compile(r"loss['\"]?[ =:]{1,4}\d", re.IGNORECASE)
_FINISHED = re.compile(r"\btrain_runtime\b|\btraining (?:is |was |has )?(?:completed?|finished|done)\b", re.IGNORECASE)
_COMMANDS = (
    "ldconfig|sysctl|mkdir|rmdir|chmod|chown|ln|cp|mv|rm|cat|grep|sed|awk|tar|touch|rsync|mount|umount|modprobe|lspci|"
    "ibstat|ibv_devinfo|numactl|kill|pkill|killall|which|wget|curl|git|hostname|ulimit|source|module|conda|tput|stty|"
    "mesg|perl|free|nvidia-smi|npu-smi"
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
    """Mark the complaints after which the log shows that the job went on.

    An exception with its frames may have ended one of several processes: the training's end has to follow it.

    Args:
        tail: the last lines of the log.
        lines: of the whole log.
    """
    if not events:
        return
    rows = tail.removesuffix("\n").split("\n")
    above = lines - len(rows)
    ends = [number for number, row in enumerate(rows, above + 1) if _FINISHED.search(row)]
    for event in events:
        after = rows[max(0, event.last - above) :]
        if event.is_raised:
            went_on = bool(ends) and event.last < ends[-1] and _makes_losses(event, after)
        elif is_of_script(event):
            went_on = bool(ends and ends[0] < event.last) or _makes_steps(after)
        else:
            is_tried_again = _TRIED_AGAIN.search(event.text) is not None
            went_on = _makes_losses(event, after) or (is_tried_again and _makes_steps(after))
        event.survived = event.survived or went_on


def gives_way(event: Event, others: Sequence[Event]) -> bool:
    """Whether another failure ended the job, and not the command of its script that failed before or after it."""
    found = _OF_COMMAND.match(event.text) if event.trace is None else None
    if found is None:
        return False
    command = found["command"] or found["word"] or found["of_system"] or (found["git"] and "git") or "apt"
    return any(
        (other.is_raised or (other.weight <= 1 and not is_of_script(other)))
        and other.source == event.source
        and other.hit.entry.family not in _BUILDS
        and command not in other.text
        for other in others
    )


def is_of_script(event: Event) -> bool:
    """Whether a shell, or a command of the system that it ran, said the line."""
    return event.trace is None and _OF_COMMAND.match(event.text) is not None


def _makes_steps(after: Sequence[str]) -> bool:
    found = (match for row in after for match in _PROGRESS.finditer(row))
    return sum(1 for _, _ in zip(found, range(_STEPS), strict=False)) == _STEPS


def _makes_losses(event: Event, after: Sequence[str]) -> bool:
    """Whether `after` has several different losses; of a process that a prefix names only its own count."""
    rows = set[str]()
    for row in after:
        if _LOSS.search(row) and (not event.speaker or lines_of.read(row).speaker == event.speaker):
            rows.add(row)
        if len(rows) == _LOSSES:
            return True
    return False
