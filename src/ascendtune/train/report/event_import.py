"""Imports TensorBoard events of any program as runs of this one: run.json, metrics.jsonl and eval.jsonl.

The record format is TFRecord's: length (8 bytes, little-endian), masked CRC-32C of the length, an Event, masked CRC-32C
of the Event. An incomplete last record is not damage: it is still being written, or its writer was killed.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from ascendtune.core.errors import InputError, MachineError, translated_disk_errors
from ascendtune.core.files import appearing, open_regular, walk, write_atomically
from ascendtune.core.foreign_json import value_at
from ascendtune.core.records import write_json
from ascendtune.core.rundir import SCHEMA_VERSION, RunDir

_PATTERN = "events.out.tfevents."
_MOST_RECORD_BYTES = 64 << 20
"""Enough for a summary with pictures; a larger length means damage."""
_MOST_POINTS = 5_000_000
"""Limit for one run: points are kept in memory, about 400 bytes each."""
_MOST_RUNS = 1000
_LONGEST_TAG = 1000
_TIMES = range(253402300800)
"""Valid times, in seconds since 1970, up to the year 9999; other times are recorded as 0."""
_FLOAT, _DOUBLE = 1, 2
"""Values of DT_FLOAT and DT_DOUBLE in TensorFlow's tensors."""
_OURS = {
    "loss": "loss", "learning_rate": "learning_rate", "learning-rate": "learning_rate", "lr": "learning_rate",
    "grad_norm": "grad_norm", "grad-norm": "grad_norm", "epoch": "epoch",
}  # fmt: skip
_EVALUATION = ("eval", "evaluation", "val", "valid", "validation", "test")
_RESERVED = ("attempt", "step", "time")


@dataclass
class ImportedRun:
    """A directory with event files.

    Attributes:
        points: number of scalars read. If a later file repeats a step, as after a resume, its values count.
        damaged: name of each damaged file -> offset in bytes at which reading stopped.
        unfinished: files with an incomplete last record.
    """

    source: Path
    points: int = 0
    damaged: dict[str, int] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    training: dict[int, dict[str, Any]] = field(default_factory=dict)
    evaluation: dict[int, dict[str, Any]] = field(default_factory=dict)
    names: dict[str, tuple[bool, str]] = field(default_factory=dict)
    """Tag -> whether it is of an evaluation, and its name in the records."""
    _used_names: set[tuple[bool, str]] = field(default_factory=set)
    """All values of `names`."""

    def add(self, step: int, wall_time: float, tag: str, value: float) -> None:
        is_evaluation, name = self.names.get(tag) or self._named(tag)
        records = self.evaluation if is_evaluation else self.training
        record = records.get(step)
        if record is None:
            is_date = _TIMES.start <= wall_time < _TIMES.stop
            records[step] = record = {"attempt": 1, "step": step, "time": wall_time if is_date else 0.0}
        record[name] = value
        self.points += 1

    def _named(self, tag: str) -> tuple[bool, str]:
        head, _, last = tag.lower().replace("\\", "/").rpartition("/")
        is_evaluation = any(part in _EVALUATION for part in head.split("/"))
        if not is_evaluation and "_" in last and last.partition("_")[0] in _EVALUATION:
            is_evaluation, last = True, last.partition("_")[2]
        name = _OURS.get(last, tag)
        if (is_evaluation, name) in self._used_names or name in _RESERVED:
            name = f"tag/{tag}"
        while (is_evaluation, name) in self._used_names:
            name = f"tag/{name}"
        self._used_names.add((is_evaluation, name))
        self.names[tag] = is_evaluation, name
        return self.names[tag]


def find_event_directories(log_directory: Path) -> list[Path]:
    """The directories at or below `log_directory` that contain event files, sorted.

    Raises:
        InputError: there are none, or too many.
    """
    directories = sorted(
        place for place, _, others in walk(log_directory) if any(name.startswith(_PATTERN) for name in others)
    )
    if not directories:
        raise InputError(
            f"no TensorBoard events ({_PATTERN}*)",
            code="no-training-records",
            remedy="give the directory that `tensorboard --logdir` gets",
            where=log_directory,
        )
    if len(directories) > _MOST_RUNS:
        raise InputError(
            f"{len(directories)} directories with events",
            code="too-many-directories",
            remedy=f"import {_MOST_RUNS} at a time",
            where=log_directory,
        )
    return directories


def read_events(directory: Path) -> ImportedRun:
    """Read all scalars of the event files in a directory.

    Raises:
        InputError: there are more points than fit into memory.
        MachineError: a file cannot be read.
        ModuleNotFoundError: tensorboard is not installed.
    """
    run = ImportedRun(directory)
    for file in sorted(directory.iterdir()):
        if file.name.startswith(_PATTERN):
            try:
                with open_regular(file) as stream:
                    _read_file(run, file.name, stream)
            except MachineError as error:
                if error.code != "not-a-regular-file":
                    raise
                run.damaged[file.name] = 0
            except FileNotFoundError:
                # The file was removed after the directory was listed.
                continue
    return run


def write_run(imported: ImportedRun, target: Path) -> RunDir:
    """Write the run, replacing an earlier import of the same directory.

    Raises:
        InputError: `target` exists and is not such an import.
        MachineError: the directory cannot be written.
    """
    source = str(imported.source.resolve())
    if not target.exists():
        # Complete or absent: the next import would refuse a directory without run.json.
        unfinished = target.with_name(f".{target.name}.importing")
        with translated_disk_errors(target, "creating the run directory"):
            target.parent.mkdir(parents=True, exist_ok=True)
            with appearing(target, unfinished):
                _write(RunDir(unfinished), imported, source)
    else:
        run = RunDir(target)
        if value_at(run.read_if_any(), "imported", "from") != source:
            raise InputError(
                "the directory exists, and was not imported from these events",
                code="path-exists",
                remedy="give another directory with --to",
                where=target,
            )
        _write(run, imported, source)
    return RunDir(target)


def _write(run: RunDir, imported: ImportedRun, source: str) -> None:
    for path, records in ((run.metrics, imported.training), (run.evaluations, imported.evaluation)):
        if records or path.exists():
            lines = (json.dumps(records[step], ensure_ascii=False) for step in sorted(records))
            write_atomically(path, "".join(f"{line}\n" for line in lines))
    records_of_both = (*imported.training.values(), *imported.evaluation.values())
    times = [record["time"] for record in records_of_both if record["time"]]
    started, ended = min(times, default=None), max(times, default=None)
    seconds = None if started is None or ended is None else ended - started
    write_json(
        run.run_json,
        {
            "schema_version": SCHEMA_VERSION,
            "state": "imported",
            "imported": {"from": source, "points": imported.points, "at": time.time(), "damaged": imported.damaged,
                         "unfinished": imported.unfinished,
                         "tags": {tag: name for tag, (_, name) in imported.names.items()}},
            "attempts": [{"attempt": 1, "started": started, "ended": ended, "seconds": seconds}],
            "created": started,
        },
    )  # fmt: skip


def _read_file(run: ImportedRun, name: str, stream: BinaryIO) -> None:
    from tensorboard.compat.proto.event_pb2 import Event

    parse, add = Event.FromString, run.add
    for offset, data in _records(stream):
        if data is None and offset < 0:
            run.unfinished.append(name)
            return
        if data is None:
            run.damaged[name] = offset
            return
        try:
            event = parse(data)
        except Exception:  # noqa: BLE001  # protobuf's own error class differs between its implementations
            run.damaged[name] = offset
            return
        if any(len(value.tag) > _LONGEST_TAG for value in event.summary.value):
            run.damaged[name] = offset
            return
        for value in event.summary.value:
            number = value.simple_value if value.HasField("simple_value") else _scalar(value.tensor)
            if number is not None:
                add(event.step, event.wall_time, value.tag, number)
        if run.points > _MOST_POINTS:
            raise InputError(
                f"more than {_MOST_POINTS:,} points",
                code="file-too-large",
                remedy="import its directories one at a time",
                where=run.source,
            )


def _records(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Offset and content of each record. If reading stops early, the last content is None, with the offset of damage,
    or with offset -1 if the file ends within a record."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    offset = 0
    while header := stream.read(12):
        if len(header) < 12:
            yield -1, None
            return
        (length, check) = struct.unpack("<QI", header)
        if not _is_length(header[:8], check) or length > _MOST_RECORD_BYTES:
            yield offset, None
            return
        body = stream.read(length + 4)
        data = body[:length]
        if len(body) < length + 4:
            yield -1, None
            return
        if masked_crc32c(data) != int.from_bytes(body[length:], "little"):
            yield offset, None
            return
        yield offset, data
        offset += 16 + length


@lru_cache(maxsize=4096)
def _is_length(header: bytes, check: int) -> bool:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    return bool(masked_crc32c(header) == check)


def _scalar(tensor: Any) -> float | None:
    """The value of a scalar tensor as written by TensorFlow 2; None for other tensors."""
    if any(each.size != 1 for each in tensor.tensor_shape.dim):
        return None
    values = list(tensor.float_val) or list(tensor.double_val)
    if len(values) == 1:
        return float(values[0])
    kinds = {(_FLOAT, 4): "<f", (_DOUBLE, 8): "<d"}
    kind = kinds.get((tensor.dtype, len(tensor.tensor_content)))
    return float(struct.unpack(kind, tensor.tensor_content)[0]) if kind else None
