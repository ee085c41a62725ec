"""One side of a comparison: a run of ascendtune, or the log of another trainer."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ascendtune.check.align.curve import Curve, Floats
from ascendtune.check.align.depth import depth_of_config, depth_of_names
from ascendtune.check.align.dump import Dump, find_dump
from ascendtune.check.align.msprobe import find_msprobe
from ascendtune.check.align.other_logs import (
    EVENTS,
    MOST_BYTES,
    Log,
    log_of,
    read_json_lines,
    read_table,
    read_tensorboard,
    read_trainer_state,
)
from ascendtune.core.document import read_document
from ascendtune.core.errors import DataError, InputError
from ascendtune.core.files import open_regular, walk
from ascendtune.core.foreign_json import object_of, read_json_object, value_at
from ascendtune.core.rundir import RunDir
from ascendtune.core.suggest import run_suggestion
from ascendtune.recipe.changes import leaves_of

_OURS = {
    name: name
    for name in (
        *("step", "loss", "grad_norm", "learning_rate", "labelled_tokens", "groups", "batch_hash"),
        *("tokens", "tokens_seen", "attempt"),
    )
}
_MOST_DIRECTORIES = 10_000
"""Number of directories that are searched for events."""
_COARSEST_FIRST = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_RECORDED = "recorded.json"
"""Facts of another trainer's run, written by `ascendtune align record`."""
REDUCED = ("tf32", "hf32")
"""Types of 11 bits to which devices can round the inputs of fp32 products."""
_SHOWN = 5


@dataclass(frozen=True)
class TrainingRecord:
    """One training, as far as its record describes it.

    Attributes:
        recipe: leaves of recipe.yaml by dotted key; None for a foreign log.
        run: run.json; empty for a foreign log.
        precision: dtype of the tensors that are multiplied; None if the record does not contain it.
        layers: depth of the model; None if neither its weights' names nor config.json are available.
        dump: tensors of some steps; None if nothing was dumped.
        start_weights: hashes of the weights before the first step, as in start_weights.json; empty if not recorded.
    """

    name: str
    path: Path
    kind: str
    curve: Curve
    recipe: dict[str, Any] | None = None
    run: dict[str, Any] = field(default_factory=dict)
    precision: str | None = None
    layers: int | None = None
    dump: Dump | None = None
    start_weights: dict[str, Any] = field(default_factory=dict)

    @property
    def is_foreign(self) -> bool:
        return self.recipe is None

    @property
    def world_size(self) -> int | None:
        attempts = self.run.get("attempts") or [self.run]
        size = attempts[-1].get("world_size")
        return size if isinstance(size, int) else None

    @property
    def resumed_at(self) -> tuple[int, ...]:
        """First steps after the checkpoints that the training was resumed from, in ascending order."""
        listed = self.run.get("resumed_at")
        return self.curve.resumed_at or tuple(
            each for each in (listed if isinstance(listed, list) else []) if type(each) is int
        )

    @property
    def fp32_products(self) -> str | None:
        """The coarsest type to which products of fp32 inputs are rounded: fp32, tf32 or hf32; None if not recorded.

        Convolutions count if the model has any. One attempt of several is enough.
        """
        names = object_of(self.start_weights.get("parameters"))
        operations = ("matmul", "conv") if any("conv" in name for name in names) else ("matmul",)
        attempts = self.run.get("attempts") or [self.run]
        found = {value_at(each, "fp32_products", name) for each in attempts for name in operations}
        return next((name for name in REDUCED if name in found), None if None in found else "fp32")

    @property
    def product_type(self) -> str | None:
        """The type of the inputs of matrix products; None if the record does not contain the precision."""
        return self.fp32_products if self.precision == "fp32" and self.fp32_products else self.precision

    @property
    def adapters(self) -> tuple[str, ...]:
        """SHA-256 of the adapters that the training started from."""
        listed = self.run.get("adapters")
        return tuple(str(value_at(each, "digest")) for each in (listed if isinstance(listed, list) else []))


def read_training_record(path: Path) -> TrainingRecord:
    """Detect the kind of record at `path`, and read it.

    Raises:
        InputError: the path does not exist, or contains no record of a training, or records of several.
        DataError: the file has no step or no loss.
        MachineError: a file cannot be read.
    """
    if not path.exists():
        raise InputError(
            "no such file or directory",
            code="path-missing",
            remedy=run_suggestion(
                path, "give a run directory or the log of another trainer; `ascendtune runs list` shows the runs"
            ),
            where=path,
        )
    if path.is_dir():
        return _read_directory(path)
    if path.name.startswith(EVENTS):
        return _foreign(path, read_tensorboard(path))
    if path.suffix == ".jsonl":
        return _foreign(path, read_json_lines(path))
    if path.suffix == ".json" and (dump := find_msprobe(path)) is not None:
        return TrainingRecord(path.parent.name, path, "msprobe", Curve.empty(), dump=dump)
    if path.suffix == ".json":
        return _foreign(path, read_trainer_state(path))
    if path.suffix in (".csv", ".tsv"):
        return _foreign(path, read_table(path))
    raise InputError(
        f"'{path.name}' is not a known record of a training run",
        code="unknown-training-record",
        remedy="give a run directory, trainer_state.json, trainer_log.jsonl, TensorBoard events or a CSV",
        where=path,
    )


def _read_directory(path: Path) -> TrainingRecord:
    if (path / "run.json").is_file():
        return _read_run(RunDir(path))
    if (path / _RECORDED).is_file():
        return _read_recorded(path)
    for name in ("trainer_state.json", "trainer_log.jsonl"):
        if (path / name).is_file():
            return _within(path, path / name)
    if checkpoints := sorted(path.glob("checkpoint-*/trainer_state.json"), key=_step_of_checkpoint):
        # The state of the last checkpoint contains the records of all earlier steps.
        return _within(path, checkpoints[-1])
    runs = [each.parent for name in ("run.json", _RECORDED) for each in path.glob(f"*/{name}")]
    events = _events_below(path)
    places = {each.parent for each in events}
    # Writers of hyperparameters create subdirectories in the directory of their training.
    trainings = sorted({*runs, *(each for each in places if places.isdisjoint(each.parents))})
    if len(trainings) > 1:
        listed = ", ".join(str(each.relative_to(path)) for each in trainings[:_SHOWN])
        raise InputError(
            f"the directory contains {len(trainings)} trainings: {listed}{', …' if len(trainings) > _SHOWN else ''}",
            code="several-trainings",
            remedy="give the directory of one of them",
            where=path,
        )
    if runs:
        return _within(path, runs[0])
    if trainings:
        return _within(path, next(each for each in events if each.parent == trainings[0]))
    if (dump := find_msprobe(path)) is not None:
        return TrainingRecord(path.name, path, "msprobe", Curve.empty(), dump=dump)
    raise InputError(
        "the directory contains no record of a training run",
        code="unknown-training-record",
        remedy="give a run directory, or one with trainer_state.json, trainer_log.jsonl or TensorBoard events",
        where=path,
    )


def _within(directory: Path, record: Path) -> TrainingRecord:
    """The record that was found in `directory`, with its relative path as its name."""
    return replace(read_training_record(record), name=str(Path(directory.name) / record.relative_to(directory)))


def _step_of_checkpoint(state: Path) -> int:
    number = state.parent.name.removeprefix("checkpoint-")
    return int(number) if number.isdecimal() and len(number) < 16 else 0


def _events_below(path: Path) -> list[Path]:
    """Files of TensorBoard events, sorted.

    Raises:
        InputError: there are too many directories to search.
    """
    files: list[Path] = []
    for number, (directory, _, names) in enumerate(walk(path), 1):
        if number > _MOST_DIRECTORIES:
            raise InputError(
                f"the directory contains more than {_MOST_DIRECTORIES:,} directories",
                code="too-many-directories",
                remedy="give the directory of one training, or the file itself",
                where=path,
            )
        files += [directory / name for name in names if name.startswith(EVENTS)]
    return sorted(each for each in files if each.is_file())


def _read_run(run: RunDir) -> TrainingRecord:
    record = run.read()
    if isinstance(record.get("imported"), dict):
        return _foreign(run.path, log_of("TensorBoard", run.path, run.read_metrics(), _OURS, rounded=False))
    precision = value_at(record, "resolved", "precision", "compute")
    recipe = leaves_of(read_document(run.recipe).values)
    dump, weights = find_dump(run.dumps), _start_weights(run)
    if dump is None and not (run.metrics.is_file() and run.metrics.stat().st_size):
        raise DataError(
            "the run has recorded no step",
            code="no-training-records",
            remedy=f"see how it ended: ascendtune runs show {shlex.quote(str(run.path))}",
            where=run.path,
        )
    curve = _metrics(run.metrics) if run.metrics.is_file() else Curve.empty()
    is_of_groups = recipe.get("method.stage") not in ("pretrain", "sft")
    return TrainingRecord(
        name=run.path.name,
        path=run.path,
        kind="ascendtune",
        curve=replace(curve, readings=("steps" if is_of_groups and curve.has_equal_groups() else "tokens",)),
        recipe=recipe,
        run=record,
        precision=precision if isinstance(precision, str) else None,
        # The recipe may add blocks, so the parameters' names count before config.json.
        layers=depth_of_names(object_of(weights.get("parameters"))) or depth_of_config(record.get("model_directory")),
        dump=dump,
        start_weights=weights,
    )


def _start_weights(run: RunDir) -> dict[str, Any]:
    return read_json_object(run.start_weights) if run.start_weights.is_file() else {}


def _read_recorded(path: Path) -> TrainingRecord:
    metrics, dump = path / "metrics.jsonl", find_dump(RunDir(path).dumps)
    curve = _metrics(metrics) if metrics.is_file() or dump is None else Curve.empty()
    facts = read_json_object(path / _RECORDED)
    precision = facts.get("precision") or (_computed_in(dump) if dump is not None else None)
    weights = _start_weights(RunDir(path))
    return TrainingRecord(
        name=path.name,
        path=path,
        kind="recorded",
        curve=curve,
        run=facts,
        precision=precision,
        layers=depth_of_names(object_of(weights.get("parameters"))),
        dump=dump,
        start_weights=weights,
    )


def _computed_in(dump: Dump) -> str | None:
    """The coarsest dtype of module outputs in the first dumped step; under autocast it differs from the weights'."""
    ranks = dump.files[min(dump.files)]
    tensors = dump.read(ranks[min(ranks)]).tensors
    dtypes = {each.dtype for key, each in tensors.items() if key.phase == "forward" and key.slot.startswith("output")}
    return next((name for dtype, name in _COARSEST_FIRST.items() if dtype in dtypes), None)


def _metrics(path: Path) -> Curve:
    """metrics.jsonl, read by Arrow: a hundred thousand steps take a fifth of a second."""
    import pyarrow as pa
    from pyarrow import json as arrow_json

    if not path.is_file():
        return Curve.of_columns({"step": np.empty(0)}, [], resolution=0.0, source=str(path))
    with open_regular(path) as file:
        content = file.read(MOST_BYTES)
    # A last line without newline is a write that was cut off.
    whole = content[: content.rfind(b"\n") + 1]
    fields = [(name, pa.string() if name == "batch_hash" else pa.float64()) for name in _OURS]
    options = arrow_json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")
    try:
        # Arrow 26.0.1 crashes the process if the first value is null, so it gets objects only.
        if not whole.startswith(b"{") or whole.count(b"\n{") != whole.count(b"\n") - 1:
            raise pa.ArrowInvalid("a line is not an object")
        table = arrow_json.read_json(pa.BufferReader(whole), parse_options=options)
        hashes = table["batch_hash"].to_pylist()
    except (pa.ArrowInvalid, UnicodeDecodeError):
        # The reader of single lines names the damaged line, or reads what Arrow cannot.
        return Curve.of_records(RunDir(path.parent).read_metrics(), _OURS, rounded=False, source=str(path))
    columns = {name: _floats(table[name]) for name in _OURS if name != "batch_hash"}
    return Curve.of_columns(columns, hashes, resolution=0.0, source=str(path))


def _floats(column: Any) -> Floats:
    """(records,) float64, NaN for null. From Arrow's buffers: its `to_numpy` imports pandas, which takes seconds."""
    parts = []
    for chunk in column.chunks:
        validity, values = chunk.buffers()
        part = np.frombuffer(values, np.float64, count=len(chunk), offset=8 * chunk.offset).copy()
        if validity is not None:
            bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
            part[bits[chunk.offset : chunk.offset + len(chunk)] == 0] = np.nan
        parts.append(part)
    return np.concatenate(parts) if parts else np.empty(0)


def _foreign(path: Path, log: Log) -> TrainingRecord:
    return TrainingRecord(path.name, path, log.kind, log.curve)
