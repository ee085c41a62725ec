"""Errors that a job survives: of a launch script's commands, of requests that are retried, and others after which the
training continued."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Sequence

from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.fatal import is_of_thread, was_logged
from ascendtune.check.explain.event.milestones import (
    is_followed,
    is_in_passing,
    is_of_request,
    milestones_in,
    was_overcome,
)
from ascendtune.check.explain.event.script_commands import is_of_script
from ascendtune.check.explain.log import line as lines_of

_STEPS = 3
"""Steps, or progress bars, after which a job has survived an error of a command of its script."""
_LOSSES, _OWN_LOSSES = 5, 2
"""Losses of a training after which it has survived any other error; and losses of the process itself, if prefixes name
the processes, or the log is that of one rank."""
_MOST_LOSSES = 100
"""Lines with a loss that are searched; with many ranks each has some among them."""
_LONGEST_FIGURE = 8
"""Most characters of a number after its first digit."""
_LOSS = re.compile(r"loss(?: is| value)?['\"]?[ =:]{1,4}['\"]?\d", re.IGNORECASE)
_STEP = re.compile(r"\b(?:step|iteration|iter)['\"]?[ =:/\[(]{1,3}['\"]?(\d+)", re.IGNORECASE)
_PROGRESS = re.compile(
    rf"{_LOSS.pattern}|\b(?:step|iteration|iter|epoch)s?['\"]?[ =:/\[(]{{1,3}}['\"]?\d|\d%\||\d ?(?:it/s|s/it)\b",
    re.IGNORECASE,
)
_FINISHED = re.compile(
    r"\btrain_runtime\b|\btraining (?:is |was |has )?(?:completed?|finished|done)\b|^ +ascendtune runs show \S",
    re.IGNORECASE,
)
_PASSED = re.compile(
    r"^(?:=+ )?\d+ passed\b(?!.*\b(?:failed|errors?)\b).* in [\d.]+s\b.*$|"
    r"^Ran \d+ tests? in [\d.]+s\n+OK(?: \((?:skipped|expected failures)=.*\))?$",
    re.MULTILINE,
)
"""Last lines of pytest or unittest without failed tests; a bare "OK" is not sufficient, as other programs print it."""
_LAST = 5
_OF_TRACKER = re.compile(
    r"\bwandb: ERROR\b|\b(?:wandb|swanlab|mlflow|tensorboard)\b.{0,80}\b(?:upload|retry)", re.IGNORECASE
)
"""Words of an experiment tracker, which uploads in the background: the training does not wait for it."""
_ANSWER = re.compile(r'"POST \S+ HTTP/[\d.]+" (?P<status>\d)\d\d\b')
"""A line of a server's access log."""
_TRIED_AGAIN = re.compile(r"\bretry(?:ing)?\b|\btry(?:ing)? again (?:in|after)\b", re.IGNORECASE)


def mark_nonfatal(events: Sequence[Event], last_lines: Sequence[tuple[int, str]], *, of_one_process: bool) -> None:
    """Mark the events that the job survived, by the lines after them.

    An uncaught exception may have ended one of several processes: it counts as survived only before the training's end.

    Args:
        last_lines: last lines of the log, each with its number.
        of_one_process: whether the log is that of one rank.
    """
    if not events:
        return
    are_prefixed = any(event.is_raised and event.trace is not None and event.trace.rank is not None for event in events)
    went_on = _GoneOn(last_lines, of_one_process=of_one_process, are_prefixed=are_prefixed)
    for event in events:
        event.survived = event.survived or went_on.after(event)
        event.next_loss = went_on.next_loss(event)
    for event in reversed(events):
        # A warning may explain a later failure; a metric that stays bad is not resolved by the training's end.
        if not (event.weak and is_followed(event, events)):
            good = went_on.milestones_of_others if event.entry.lasting else went_on.milestones
            is_overcome = was_overcome(event, good, events) or (event.weak and went_on.has_trained_on(event))
            event.survived = event.survived or is_overcome


class _GoneOn:
    """Progress of the job in the last lines of its log."""

    def __init__(self, numbered: Sequence[tuple[int, str]], *, of_one_process: bool, are_prefixed: bool) -> None:
        self._of_one_process, self._are_prefixed = of_one_process, are_prefixed
        self._steps = [
            (number, row[progress.start() : progress.end() + _LONGEST_FIGURE])
            for number, row in numbered
            for progress in _PROGRESS.finditer(row)
        ]
        self._losses = [(number, row) for number, row in numbered if _LOSS.search(row)]
        last = "\n".join(lines_of.read(row).message.strip() for _, row in numbered[-_LAST:])
        passed = (numbered[-1][0] - last.count("\n", progress.end()) for progress in _PASSED.finditer(last))
        self._passed = max(passed, default=0)
        answers = ((number, _ANSWER.search(row)) for number, row in numbered if "HTTP/" in row)
        self._answers = [(number, match["status"]) for number, match in answers if match is not None]
        self._ends = [number for number, row in numbered if _FINISHED.search(row)]
        self.milestones_of_others = milestones_in(numbered)
        self.milestones = self.milestones_of_others.with_ends(self._ends)

    def after(self, event: Event) -> bool:
        if event.last < self._passed:
            return True
        if event.is_raised and (not was_logged(event) or is_of_thread(event)):
            # torch writes the rank before each line of an exception that ends a process.
            is_unprefixed = self._are_prefixed and event.trace is not None and event.trace.rank is None
            return (self._has_ended(event) or is_unprefixed) and self._has_losses(event)
        if is_of_request(event) and self._has_losses(event, _STEPS):
            return True
        if is_of_script(event):
            return self.has_trained_on(event) or bool(self._ends and self._ends[0] < event.last)
        if _OF_TRACKER.search(event.text):
            return self._has_ended(event) or (bool(self._steps) and self._steps[-1][0] > event.last)
        if _TRIED_AGAIN.search(event.text) and (self._has_steps(event) or self._has_ended(event)):
            return True
        # Steps of other processes show nothing about a process that a prefix names.
        has_steps = not event.speaker and self._has_different_steps(event)
        if (has_steps or self._has_losses(event, _OWN_LOSSES)) and is_in_passing(event):
            return True
        return self._has_losses(event) or self._has_answered_others(event)

    def has_trained_on(self, event: Event) -> bool:
        return self._has_steps(event) or self._has_losses(event, _OWN_LOSSES)

    def next_loss(self, event: Event) -> int | None:
        """Number of the first line after `event` in which its process reports a loss."""
        first = bisect(self._losses, event.last, key=lambda loss: loss[0])
        own = (number for number, row in self._losses[first : first + _MOST_LOSSES] if self._is_of_speaker(event, row))
        return next(own, None)

    @staticmethod
    def _is_of_speaker(event: Event, row: str) -> bool:
        return not event.speaker or lines_of.read(row).speaker == event.speaker

    def _has_steps(self, event: Event) -> bool:
        return len(self._steps_after(event)) >= _STEPS

    def _has_different_steps(self, event: Event) -> bool:
        return len({figure for _, figure in self._steps_after(event)}) >= _STEPS

    def _steps_after(self, event: Event) -> list[tuple[int, str]]:
        return self._steps[bisect(self._steps, event.last, key=lambda step: step[0]) :]

    def _has_answered_others(self, event: Event) -> bool:
        """Whether a server refused one request because of the event, and answered later ones."""
        statuses = "".join(status for number, status in self._answers if number > event.last)
        return statuses.startswith("4") and "2" in statuses

    def _has_ended(self, event: Event) -> bool:
        """Whether the training's end follows the event."""
        return bool(self._ends) and event.last < self._ends[-1]

    def _has_losses(self, event: Event, least: int = _LOSSES) -> bool:
        """Whether several different losses follow the event, or losses of several steps; fewer if the training
        finished. For a process that a prefix names only its own losses count."""
        enough = _OWN_LOSSES if event.speaker or self._of_one_process or self._has_ended(event) else least
        first = bisect(self._losses, event.last, key=lambda loss: loss[0])
        rows, steps = set[str](), set[str]()
        for _, row in self._losses[first : first + _MOST_LOSSES]:
            if self._is_of_speaker(event, row):
                rows.add(row)
                steps.update(_STEP.findall(row)[:1])
            if len(rows) == enough or len(steps) == _STEPS:
                return True
        return False
