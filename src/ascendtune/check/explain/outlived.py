"""Complaints that a job outlives: those of a launch script's commands, of requests that are tried again, and others
after which the training went on.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Sequence

from ascendtune.check.explain import line as lines_of
from ascendtune.check.explain.event import Event
from ascendtune.check.explain.own_words import explains_itself

_STEPS = 3
"""Figures of steps, or progress bars, after which a job is believed to have outlived a command of its script."""
_LOSSES, _OWN_LOSSES = 5, 2
"""Losses of a training after which it is believed to have outlived any other complaint; losses of the process itself,
where prefixes name the processes, or the log is that of one rank."""
_MOST_LOSSES = 100
"""Lines with a loss that are looked at; of many ranks each has some among them."""
_LOSS = re.compile(r"loss(?: is| value)?['\"]?[ =:]{1,4}['\"]?\d", re.IGNORECASE)
_PROGRESS = re.compile(
    rf"{_LOSS.pattern}|\b(?:step|iteration|iter|epoch)s?['\"]?[ =:/\[(]{{1,3}}['\"]?\d|\d%\||\d ?(?:it/s|s/it)\b",
    re.IGNORECASE,
)
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
"""Complaints of a shell, or of a command that a script called; without `set -e` the script goes on after them."""
_TRIED_AGAIN = re.compile(r"\bretry(?:ing)?\b|\btry(?:ing)? again (?:in|after)\b", re.IGNORECASE)
_OF_DEVICE = re.compile(r"\b(?:CUDA|cuda|NPU|HIP) error|device-side|\bNCCL|\bHCCL|\bacl|ERR\d{5}|\bE[A-Z1-9]\d{4}\b")
"""Words with which a device reports, by an exception, what it may have printed before."""
_OF_CRASH = re.compile(r"Fatal Python error|core dumped|Segmentation fault|terminate called|^(?:Killed|Aborted)$")
"""Words with which the interpreter, a runtime or the shell says that a program ended."""
_OF_THREAD = ("threading.py in ",)
_MAY_FOLLOW = ("FileNotFoundError",)
"""Exceptions that most often follow from a failure before, which was logged only."""
_NEAR_LINES = 80
"""Lines between a failure that was logged and an exception, with its traceback, that may follow from it."""
INTERRUPTED = "interrupted", "ended-by-signal"
"""Entries by which a program says that it was asked to end."""
_BUILDS = ("build", "packages", "package-managers")
"""Families of failures that a missing command may be behind."""


def mark_outlived(events: Sequence[Event], tail: str, lines: int, *, of_one_process: bool) -> None:
    """Mark the complaints after which the log shows that the job went on.

    An exception that was not caught may have ended one of several processes: the training's end has to follow it.

    Args:
        tail: the last lines of the log.
        lines: of the whole log.
        of_one_process: the log is that of one rank.
    """
    if not events:
        return
    went_on = _GoneOn(tail, lines, of_one_process=of_one_process)
    for event in events:
        event.survived = event.survived or went_on.after(event)


class _GoneOn:
    """Where the last lines of a log show that its job made steps."""

    def __init__(self, tail: str, lines: int, *, of_one_process: bool) -> None:
        self._of_one_process = of_one_process
        rows = tail.removesuffix("\n").split("\n")
        numbered = list(enumerate(rows, lines - len(rows) + 1))
        self._steps = [number for number, row in numbered for _ in _PROGRESS.finditer(row)]
        self._losses = [(number, row) for number, row in numbered if _LOSS.search(row)]
        self._ends = [number for number, row in numbered if _FINISHED.search(row)]

    def after(self, event: Event) -> bool:
        if event.is_raised and (not _was_logged(event) or _is_of_thread(event)):
            return self._has_ended(event) and self._has_losses(event)
        if is_of_script(event):
            return bool(self._ends and self._ends[0] < event.last) or self._has_steps(event)
        is_tried_again = _TRIED_AGAIN.search(event.text) is not None
        return self._has_losses(event) or (is_tried_again and self._has_steps(event))

    def _has_steps(self, event: Event) -> bool:
        return len(self._steps) - bisect(self._steps, event.last) >= _STEPS

    def _has_ended(self, event: Event) -> bool:
        """Whether the training's end follows."""
        return bool(self._ends) and event.last < self._ends[-1]

    def _has_losses(self, event: Event) -> bool:
        """Whether several different losses follow, few where the training came to its end; of a process that a prefix
        names only its own count."""
        enough = _OWN_LOSSES if event.speaker or self._of_one_process or self._has_ended(event) else _LOSSES
        first = bisect(self._losses, event.last, key=lambda loss: loss[0])
        rows = set[str]()
        for _, row in self._losses[first : first + _MOST_LOSSES]:
            if not event.speaker or lines_of.read(row).speaker == event.speaker:
                rows.add(row)
            if len(rows) == enough:
                return True
        return False


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


class Ends:
    """What ended the processes of a job, among the events of all its logs."""

    def __init__(self, events: Sequence[Event]) -> None:
        ends = [event for event in events if event.is_raised and _is_an_end(event)]
        self._of_source, self._uncaught = defaultdict[str, list[Event]](list), defaultdict[str, list[Event]](list)
        for end in ends:
            self._of_source[end.source].append(end)
            if not _was_logged(end):
                self._uncaught[end.source].append(end)
        self._failures = [event for event in events if event.weight == 0 and _ended_a_process(event)]
        waits = [event for event in events if event.hit.entry.waits]
        self._waited = {_process_of(event): event.last for event in sorted(waits, key=lambda wait: wait.last)}

    def overrule(self, event: Event) -> bool:
        """Whether `event` was only logged, and the exception that ended a program is the cause.

        One that ended the same program later is where its own cause is known; where it may follow from what was logged
        it is not, unless it came much later. A process that waited for others later was not ended by what it logged,
        and no process is by an exception of a thread: where another one failed, that is the cause.
        """
        if event.weight or not _was_logged(event):
            return False
        end = self.later(event)
        if end is not None and (_says_why(end) or end.number - event.last > _NEAR_LINES):
            return True
        process = _process_of(event)
        went_on = _is_of_thread(event) or self._waited.get(process, 0) > event.last
        return went_on and any(_process_of(failure) != process for failure in self._failures)

    def later(self, event: Event) -> Event | None:
        """The last exception of the program after `event`, which was only logged; None where it does not say why.

        Of several exceptions that were logged the later ones may follow from the first, and what a device reports it
        may have printed before.
        """
        if not _was_logged(event):
            return None
        ends = [
            end
            for end in (self._of_source if event.trace is None else self._uncaught)[event.source]
            if end.trace is not None
            and event.last < end.trace.first_line
            and event.speaker in ("", end.speaker)
            # Of one family the later one may only say again what was logged.
            and (end.hit.entry.family != event.hit.entry.family or _says_why(end))
        ]
        if any(end.hit.entry is event.hit.entry or end.message in event.text for end in ends):
            # What was logged was raised as well.
            return None
        # Of several readings of a line the best stands first.
        return max(ends, key=lambda end: (_says_why(end), end.number), default=None)


def _is_of_thread(event: Event) -> bool:
    return event.trace is not None and event.trace.passed(_OF_THREAD)


def _was_logged(event: Event) -> bool:
    if event.is_raised and event.trace is not None:
        return event.trace.is_logged
    return event.trace is None and not (is_of_script(event) or _OF_CRASH.search(event.text))


def _ended_a_process(event: Event) -> bool:
    return not (_was_logged(event) or event.weak or event.is_of_clean_up)


def _process_of(event: Event) -> tuple[str, str] | int:
    return (event.source, event.speaker) if event.rank is None else event.rank


def _is_an_end(event: Event) -> bool:
    is_told = event.weight == 0 and (event.is_known or explains_itself(event))
    is_aside = event.weak or event.is_of_clean_up or event.hit.entry.id in INTERRUPTED
    return is_told and not is_aside and _OF_DEVICE.search(event.text) is None


def _says_why(end: Event) -> bool:
    """Whether the cause of an exception is known, and is not likely to be a failure before it."""
    return end.is_cause and not end.says_little and end.trace is not None and end.trace.type not in _MAY_FOLLOW


def is_of_script(event: Event) -> bool:
    """Whether a shell, or a command of the system that it ran, said the line."""
    return event.trace is None and _OF_COMMAND.match(event.text) is not None
