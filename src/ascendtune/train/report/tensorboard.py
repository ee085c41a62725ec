"""TensorBoard events in RUN/tensorboard, written at most once a second.

They are written with TensorBoard's own protos and record format. Its EventFileWriter would add a thread and import
TensorFlow if that is installed; torch's SummaryWriter uses it.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from ascendtune.core.errors import translated_disk_errors
from ascendtune.core.log import warn
from ascendtune.core.rundir import RunDir
from ascendtune.train.report.callback import Callback, RunFacts

_NO_CURVES = {
    *("attempt", "step", "epoch", "tokens", "labelled_tokens", "groups", "tokens_seen", "batch_hash", "data_hash"),
    *("seconds", "datasets", "tokens_of_datasets"),
}
"""Keys of a record that are not drawn; all others are, including those of a particular stage."""
_PREFIX = "events.out.tfevents."

_SECONDS_BETWEEN_WRITES = 1.0
"""Writing several events together costs half as much as one between two short steps. If the process is killed, the
events of this time are lost; their numbers are in metrics.jsonl."""


class TensorBoardWriter(Callback):
    """Writes scalars: `train/…` for each recorded step and `eval/…` for each evaluation."""

    def __init__(self, run: RunDir) -> None:
        self._directory = run.path / "tensorboard"
        self._facts: RunFacts | None = None
        self._events: _Events | None = None
        self._is_missing = False
        self._unwritten: list[tuple[int, float, dict[str, float | None]]] = []
        """Steps that are not written yet, the times at which they were recorded, and their curves."""
        self._written_at = -_SECONDS_BETWEEN_WRITES
        """Time of the last write, by the monotonic clock."""

    def on_start(self, facts: RunFacts) -> None:
        self._facts = facts

    def on_step(self, record: dict[str, Any]) -> None:
        self._add(record["step"], curves("train", record))
        if time.monotonic() - self._written_at >= _SECONDS_BETWEEN_WRITES:
            self._write()

    def on_evaluation(self, record: dict[str, Any]) -> None:
        self._add(record["step"], curves("eval", record))
        self._write()

    def on_end(self) -> None:
        self._write()
        if self._events is not None:
            self._events.close()
            self._events = None

    def _add(self, step: int, values: dict[str, float | None]) -> None:
        if not self._is_missing:
            self._unwritten.append((step, time.time(), values))

    def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        if not unwritten or self._facts is None:
            return
        self._written_at = time.monotonic()
        with translated_disk_errors(self._directory, "writing TensorBoard events"):
            if self._events is None:
                # Opened at the first record: the import must not delay the first step.
                try:
                    self._events = _Events(self._directory, self._facts)
                except ImportError:
                    self._is_missing = True
                    warn("no TensorBoard events: pip install tensorboard, or set track.tensorboard: false")
                    return
            for step, recorded_at, values in unwritten:
                self._events.write(
                    step, recorded_at, {tag: value for tag, value in values.items() if value is not None}
                )


def curves(kind: str, record: dict[str, Any]) -> dict[str, float | None]:
    """The numbers of a record that are drawn, with the names `KIND/NAME`; of each data set of a mixture
    `KIND/DATASET/NAME`."""
    points = {_curve(kind, name, record): value for name, value in record.items() if name not in _NO_CURVES}
    of_datasets = record.get("datasets")
    for dataset, values in of_datasets.items() if isinstance(of_datasets, dict) else ():
        points |= curves(f"{kind}/{dataset}", values) if isinstance(values, dict) else {}
    return points


def _curve(kind: str, name: str, record: dict[str, Any]) -> str:
    """Name of a curve. An imported tag may have the prefix already, beside a tag of the same name without it."""
    return name if name.startswith(f"{kind}/") and name.removeprefix(f"{kind}/") not in record else f"{kind}/{name}"


def _second(directory: Path) -> int:
    """The second that a new event file is named after.

    Readers take the files of a directory in the order of their names. The clock may have been set back since an earlier
    attempt, whose files must still come first.
    """
    seconds = (path.name.removeprefix(_PREFIX).partition(".")[0] for path in directory.glob(f"{_PREFIX}*"))
    return max([int(time.time()), *(int(each) + 1 for each in seconds if each.isdecimal())])


class _Events:
    """An event file, readable while it grows; it purges what an earlier attempt recorded after its checkpoint."""

    def __init__(self, directory: Path, facts: RunFacts) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        directory.mkdir(parents=True, exist_ok=True)
        # Readers read the files of a directory in the order of their names: by time, as in TensorBoard's own names.
        name = f"{_second(directory):010d}.{socket.gethostname()}.{os.getpid()}.{facts.attempt}"
        self._file = (directory / f"{_PREFIX}{name}").open("wb", buffering=0)
        self._writer = RecordWriter(self._file)
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if facts.attempt > 1:
            start = SessionLog(status=SessionLog.START)
            self._add(Event(wall_time=time.time(), step=facts.start_step + 1, session_log=start))

    def write(self, step: int, recorded_at: float, values: dict[str, float]) -> None:
        summary = self._summary(
            value=[self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        )
        self._add(self._event(wall_time=recorded_at, step=step, summary=summary))

    def close(self) -> None:
        self._file.close()

    def _add(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
