"""Sends a run to a tracker: uses only the run directory, may be repeated, and sends each step once.

The tracker reports the last step that it has; if it cannot, `track/sent.json` in the run directory has it. A step is
complete, and is sent, when a later one is recorded or the run has ended: an evaluation may still follow its training
step. If the run was stopped in between, the evaluation is sent with the next step, because its own may have been sent.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from ascendtune.core.document import read_document
from ascendtune.core.errors import InputError, MachineError, translated_disk_errors
from ascendtune.core.foreign_json import is_number, value_at
from ascendtune.core.locks import file_lock
from ascendtune.core.mask import without_secrets
from ascendtune.core.records import read_json_record, write_json
from ascendtune.core.rundir import RunDir
from ascendtune.train.report.tensorboard import curves
from ascendtune.train.report.trackers import Destination, Identity, Outcome, Point, Tracker, open_tracker

_MOST_POINTS = 2_000_000
"""Limit for one run: points are kept in memory."""
_POINTS_AT_ONCE = 1000
_OUTCOMES: dict[str, Outcome] = {"finished": "finished", "imported": "finished", "failed": "failed", "lost": "failed"}


class Points:
    """Collects the records of a run, and returns each complete step once, in order.

    Args:
        attempts: from run.json. Training records have no time: the time of a step is the start of its attempt plus the
            seconds of the steps since, so it is the same on every machine.
    """

    def __init__(self, attempts: list[dict[str, Any]]) -> None:
        self._begins = {each.get("attempt"): _time(each.get("started")) for each in attempts}
        self._seconds = dict[Any, float]()
        self._values = dict[int, dict[str, float]]()
        self._times = dict[int, float]()
        self._attempts = dict[int, Any]()
        """Step -> the attempt that trained it."""
        self._newest = -1
        self._last_time = next(iter(self._begins.values()), 0.0)

    def add(self, kind: Literal["train", "eval"], record: dict[str, Any]) -> None:
        """Add a line of metrics.jsonl or eval.jsonl.

        Raises:
            MachineError: the line has no step.
            InputError: there are too many lines.
        """
        step, attempt, seconds = record.get("step"), record.get("attempt"), record.get("seconds")
        if type(step) is not int or not 0 <= step < 1 << 53:
            raise MachineError(
                "a record has no step", code="record-damaged", remedy="restore metrics.jsonl and eval.jsonl from a copy"
            )
        if kind == "train":
            self._attempts[step] = attempt
        elif self._attempts.get(step, attempt) != attempt:
            step += 1
        if isinstance(seconds, dict):
            self._seconds[attempt] = self._seconds.get(attempt, 0.0) + _time(seconds.get("step"))
        if kind == "train" or record.get("time"):
            begin = self._begins.get(attempt, 0.0)
            self._times[step] = _time(record.get("time")) or begin + self._seconds.get(attempt, 0.0)
        numbers = {name: value for name, value in curves(kind, record).items() if name != f"{kind}/time"}
        self._values.setdefault(step, {}).update(
            (name, float(value)) for name, value in numbers.items() if is_number(value)
        )
        self._newest = max(self._newest, step)
        if len(self._values) > _MOST_POINTS:
            raise InputError(
                f"the run has more than {_MOST_POINTS:,} steps",
                code="too-large",
                remedy="record fewer: track.every_steps",
            )

    def take(self, *, with_last: bool) -> list[Point]:
        """The complete steps that were not returned before; including the newest one if the run has ended."""
        steps = sorted(step for step in self._values if with_last or step < self._newest)
        points = []
        for step in steps:
            # An evaluation between recorded steps has the time of the step before it.
            self._last_time = self._times.pop(step, self._last_time)
            points.append(Point(step, self._last_time, self._values.pop(step)))
        return points


def _time(value: Any) -> float:
    return float(value) if is_number(value, 0, 1 << 40) else 0.0


def identity_of(run: RunDir) -> Identity:
    """Name, configuration and fixed id of a run.

    Raises:
        InputError: the run has not begun to train.
        MachineError: its records are damaged.
    """
    record = run.read()
    attempts = record.get("attempts")
    if not attempts:
        raise InputError(
            "this run has not begun to train", code="no-training-records", remedy="send it later", where=run.path
        )
    # Facts that no later attempt changes; the directory's name and location may change.
    fixed = [attempts[0].get("started"), record.get("host"), value_at(record, "imported", "from")]
    number = hashlib.sha256(json.dumps(fixed).encode()).hexdigest()[:16]
    recipe = read_document(run.recipe).values if run.recipe.is_file() else {}
    config = {"recipe": recipe, "resolved": record.get("resolved") or {}, "versions": record.get("versions") or {}}
    fixed_name = f"{record.get('name') or 'run'}-{number[:8]}"
    return Identity(number, run.path.resolve().name, fixed_name, _masked(config), run.path)


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _masked(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_masked(each) for each in value]
    return without_secrets(value) if isinstance(value, str) else value


class Sending:
    """A connection to a tracker over which only steps are sent that the tracker does not have."""

    def __init__(self, run: RunDir, destination: Destination) -> None:
        """Connect to the tracker.

        Raises:
            InputError: the run has nothing to send.
            MachineError: the tracker cannot be reached, or its client is not installed.
        """
        self._run, self._destination = run, destination
        recorded = sent_step(run, destination)
        identity = identity_of(run)
        self._tracker: Tracker = open_tracker(destination, identity)
        last_step = self._tracker.last_step()
        self.last = recorded if last_step is None else last_step
        self.count = 0

    def send(self, points: list[Point]) -> None:
        """Send the points that the tracker does not have.

        Raises:
            MachineError: the tracker did not accept them.
        """
        new = [each for each in points if each.step > self.last]
        for begin in range(0, len(new), _POINTS_AT_ONCE):
            part = new[begin : begin + _POINTS_AT_ONCE]
            self._tracker.send(part)
            self.last = part[-1].step
            self.count += len(part)

    def close(self, outcome: Outcome) -> None:
        """Wait until everything has arrived, and record it in the run directory.

        Raises:
            MachineError: it has not arrived, or cannot be recorded.
        """
        self._tracker.close(outcome)
        write_json(
            _sent(self._run), {**_records(self._run), _key(self._destination): {"step": self.last, "at": time.time()}}
        )


@contextmanager
def exclusive_sending(run: RunDir, destination: Destination) -> Iterator[None]:
    """Context in which no other process sends the run to the same tracker.

    Raises:
        MachineError: another process sends it, or the run directory is not writable.
    """
    directory = _sent(run).parent
    with translated_disk_errors(directory, "noting what is sent"):
        directory.mkdir(exist_ok=True)
    with file_lock(directory / f".{destination.tracker}.lock", wait=False) as is_locked:
        if not is_locked:
            raise MachineError(
                f"another process is sending this run to {destination.tracker}",
                code="run-in-use",
                remedy="wait until it has ended; a run that is training sends its steps itself (track.send_to)",
                where=run.path,
            )
        yield


def send_run(run: RunDir, destination: Destination, state: str) -> int:
    """Send the steps that the tracker does not have yet; return their number.

    Args:
        state: of the run; `lost` if run.json has `running` but the process does not exist.

    Raises:
        InputError: there is nothing to send, or offline files of the run exist that cannot be continued.
        MachineError: the tracker cannot be reached, or a record is damaged.
    """
    points = Points(run.read()["attempts"])
    for record in run.read_metrics():
        points.add("train", record)
    for record in run.read_evaluations():
        points.add("eval", record)
    is_over = state != "running"
    points_to_send = points.take(with_last=is_over)
    if not points_to_send:
        raise InputError(
            "this run has no complete step", code="no-training-records", remedy="send it later", where=run.path
        )
    with exclusive_sending(run, destination):
        if destination.offline and not _may_write_offline(run, destination, points_to_send[-1].step, is_over=is_over):
            return 0
        sending = Sending(run, destination)
        sending.send(points_to_send)
        sending.close(_OUTCOMES.get(state, "stopped") if is_over else "running")
        return sending.count


def _may_write_offline(run: RunDir, destination: Destination, newest: int, *, is_over: bool) -> bool:
    """Whether to write offline files; a client's file contains a whole run, so they are written once.

    Raises:
        InputError: the run is still training, or was continued since they were written.
    """
    before = sent_step(run, destination)
    if not is_over or -1 < before < newest:
        raise InputError(
            "offline files contain a whole run, and this one is still training"
            if not is_over
            else f"offline files of this run exist, up to step {before}",
            code="run-in-use" if not is_over else "path-exists",
            remedy="write them when it has ended; or send the run without --offline"
            if not is_over
            else "upload these, then send the run without --offline: the tracker gets the steps that it does not have",
            where=run.path,
        )
    return before < newest


def sent_step(run: RunDir, destination: Destination) -> int:
    """The newest step that was sent to `destination` according to the run directory; -1 if there is none.

    Raises:
        MachineError: the record is damaged.
    """
    step = value_at(_records(run), _key(destination), "step")
    return step if type(step) is int else -1


def _records(run: RunDir) -> dict[str, Any]:
    path = _sent(run)
    return read_json_record(path) if path.is_file() else {}


def _sent(run: RunDir) -> Path:
    return run.path / "track" / "sent.json"


def _key(destination: Destination) -> str:
    host = "offline" if destination.offline else without_secrets(destination.host or "")
    return f"{destination.tracker} {host} {destination.project}"
