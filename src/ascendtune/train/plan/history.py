"""The history: speed and memory of past runs, beside their predictions. Free of torch.

`plan_history.jsonl` in the state directory has one line per run: sizes, settings, name of the device, predictions and
measurements; no paths, run names or host names.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascendtune.core.directories import state_directory
from ascendtune.core.errors import MachineError
from ascendtune.core.files import write_atomically
from ascendtune.core.locks import file_lock
from ascendtune.core.records import read_record

if TYPE_CHECKING:
    from ascendtune.recipe.recipe import Recipe

_FILE, _LOCK = "plan_history.jsonl", ".plan_history.lock"
_MOST_RUNS = 1000
_LONGEST_LINE = 4096
_WORD = re.compile(r"[^A-Za-z0-9 ()@.,:/+×_-]")
_MOST_BYTES = 1 << 62


@dataclass(frozen=True)
class Features:
    """The properties that determine how well a run uses its device."""

    model_type: str
    parameters: int
    trainable: int
    stage: str
    tuner: str
    precision: str
    strategy: str
    checkpointing: bool
    positions: int
    """Positions of a micro-batch, including padding."""
    ranks: int


@dataclass(frozen=True)
class PastRun:
    """A line of the file; values that were not predicted or not measured are None."""

    written: float
    """Seconds since 1970."""
    device: str
    kind: str
    features: Features
    flops_per_second: float
    """Computed FLOP/s of one rank over whole steps; the median over the recorded ones."""
    step_seconds: float
    predicted_seconds: float | None
    """Prediction for a step, from earlier runs or from the table of devices."""
    peak_bytes: int | None
    predicted_bytes: int | None


def tuner_of(recipe: Recipe) -> str:
    """The tuner for comparing speeds.

    No FLOPs are counted for DoRA's norms and for the dequantisation of four-bit weights before each product.
    """
    method = recipe.method
    tuner = "dora" if method.tuner == "lora" and method.lora.dora else method.tuner
    return tuner if recipe.model.quantization is None else f"{tuner} {recipe.model.quantization}"


def safe_name(text: str) -> str:
    """A name from config.json or a driver, with only characters that are safe in the file and on a terminal."""
    return _WORD.sub("", text)[:80]


def read_history(directory: Path | None = None) -> list[PastRun]:
    """Past runs, the oldest first; lines that are damaged, or of another version, are ignored.

    Args:
        directory: the default is the state directory.
    """
    try:
        content = read_record((directory or state_directory()) / _FILE, own=True)
    except (OSError, MachineError):
        return []
    return [run for line in content.splitlines() if (run := _parsed(line)) is not None]


def add_to_history(run: PastRun, directory: Path | None = None) -> None:
    """Append a run; of more than a thousand runs the oldest are removed.

    Raises:
        MachineError: the file cannot be written.
        OSError: the directory cannot be created.
    """
    directory = directory or state_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with file_lock(directory / _LOCK, wait=True):
        runs = [*read_history(directory), run][-_MOST_RUNS:]
        write_atomically(directory / _FILE, "".join(json.dumps(asdict(each)) + "\n" for each in runs))
        (directory / _FILE).chmod(0o600)


@dataclass(frozen=True)
class PastSpeed:
    """FLOP/s of one rank to be expected from past runs."""

    low: float
    expected: float
    high: float
    runs: int


_NEAREST = 5
_FARTHEST = 3.0


def past_speed(device: str, features: Features, history: Sequence[PastRun]) -> PastSpeed | None:
    """Speed of the most similar runs on this device; None if there are none.

    The mean is geometric; the weight of a run halves with each unit of `distance`. The interval contains all of these
    runs, plus a margin of a tenth, and of 15 % more for each unit of distance of the nearest run.
    """
    near = [(distance(features, each.features), number, each) for number, each in enumerate(history)]
    near = [each for each in near if each[2].device == device and each[0] <= _FARTHEST]
    # Of equally similar runs the newest count.
    near = sorted(near, key=lambda each: (each[0], -each[1]))[:_NEAREST]
    if not near:
        return None
    weights = [2.0**-away for away, *_ in near]
    speeds = [each.flops_per_second for *_, each in near]
    logs = sum(weight * math.log(speed) for weight, speed in zip(weights, speeds, strict=True))
    expected = math.exp(logs / sum(weights))
    margin = 1.1 + 0.15 * near[0][0]
    return PastSpeed(min(*speeds, expected) / margin, expected, max(*speeds, expected) * margin, len(near))


def distance(one: Features, other: Features) -> float:
    """Dissimilarity of two runs with respect to speed; a guess, only for ranking. Infinite if not comparable."""
    if (one.precision, one.ranks, one.strategy) != (other.precision, other.ranks, other.strategy):
        return math.inf
    total = abs(math.log2(max(1, one.parameters) / max(1, other.parameters)))
    total += 0.5 * abs(math.log2(max(1, one.positions) / max(1, other.positions)))
    total += 1.0 * (one.tuner != other.tuner) + 0.5 * (one.stage != other.stage)
    return total + 0.25 * (one.checkpointing != other.checkpointing) + 0.25 * (one.model_type != other.model_type)


@dataclass(frozen=True)
class PredictionErrors:
    """Errors of past predictions, as predicted ÷ measured - 1."""

    runs: int
    median: float
    worst: float
    low: float


def errors_of(pairs: Sequence[tuple[float | None, float | None]]) -> PredictionErrors | None:
    """Errors of pairs (predicted, measured); None if no pair is complete."""
    errors = [one / other - 1 for one, other in pairs if one and other]
    if not errors:
        return None
    absolute = [abs(each) for each in errors]
    return PredictionErrors(len(errors), statistics.median(absolute), max(absolute), min(errors))


def new_run(device: str, kind: str, features: Features, **measured: Any) -> PastRun:
    """A run that ends now."""
    return PastRun(time.time(), safe_name(device), kind, features, **measured)


def _parsed(line: bytes) -> PastRun | None:
    if len(line) > _LONGEST_LINE:
        return None
    try:
        values = json.loads(line)
        features = _checked(Features, values.pop("features"))
        run: PastRun = _checked(PastRun, {**values, "features": features})
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return None
    return run if run.flops_per_second > 0 and run.step_seconds > 0 else None


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "bool": (bool,), "float": (int, float), "Features": (Features,),
    "float | None": (int, float, type(None)), "int | None": (int, type(None)),
}  # fmt: skip


def _checked(kind: Any, values: Any) -> Any:
    """An object of `kind` with the given values, whose types are checked.

    Raises:
        ValueError: a value has another type, or is a number that is not finite or too large.
    """
    for each in fields(kind):
        value = values[each.name]
        if not isinstance(value, _TYPES[str(each.type)]) or (isinstance(value, bool) and each.type != "bool"):
            raise ValueError(each.name)
        if isinstance(value, str) and value != safe_name(value):
            raise ValueError(each.name)
        if isinstance(value, int | float) and not 0 <= value < _MOST_BYTES:
            raise ValueError(each.name)
    return kind(**{each.name: values[each.name] for each in fields(kind)})
