"""Dumps of tensors: `dump/step-N/rank_R.jsonl` of a training, read without torch.

A dump may come from an untrusted source: the size of files is limited, the type of each field is checked, and nothing
is unpickled.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ascendtune.check.align.curve import Floats
from ascendtune.core.errors import DataError
from ascendtune.core.foreign_json import open_foreign, read_regular_file
from ascendtune.hub.safetensors_header import read_safetensors_header

Phase = Literal["parameter_before", "forward", "loss", "backward", "gradient", "parameter_after"]
PHASES: frozenset[str] = frozenset(("parameter_before", "forward", "loss", "backward", "gradient", "parameter_after"))
FORMAT = 2
_STEP = re.compile(r"step-(0*[0-9]{1,15})")
_RANK = re.compile(r"rank_(0|[1-9][0-9]{0,5})\.jsonl")
MOST_STEPS = 64
"""Dumped steps of a training that are compared."""
_MOST_BYTES = 512 << 20
"""Limit for one file: a tensor takes half a kilobyte, so this is a million tensors."""
_MOST_FILES = 1 << 16
_LONGEST_TEXT = 512
_MOST_DIMENSIONS = 16
_MOST_ROWS = 1 << 20
"""Limit for the batch of a step."""
_MOST_SAMPLES = 64
_LARGEST_SIZE = 1 << 48
_MOST_VALUES = 1 << 26
"""Largest number of elements of a tensor that is read whole: 64 Mi, half a gigabyte in float64."""
_UNSIGNED = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "U8": "u1",
    "BOOL": "u1",
}


class TensorKey(NamedTuple):
    """Identifies a tensor in a step; the same tensor of two sides has equal keys.

    Attributes:
        micro_batch: None for a tensor of the whole step.
        name: of a module or a parameter, as in the plain transformers model.
        nth: 0 for the first tensor with this key; a module that is called twice has two.
    """

    phase: str
    micro_batch: int | None
    name: str
    slot: str
    nth: int


class TensorStatistics(NamedTuple):
    """Statistics of one tensor; numbers are NaN if the writer had none.

    Attributes:
        order: position in the order of execution.
        kind: class of the module.
        dtype: as torch calls it, without `torch.`.
        lowest, highest, mean, l2: over the finite values; l2 is the Euclidean norm.
        digest: hash of the bytes; empty if the writer computed none.
        samples: k values, one from each of k equal parts of the flattened tensor, at the same positions in every dump.
    """

    order: int
    kind: str
    shape: tuple[int, ...]
    dtype: str
    lowest: float
    highest: float
    mean: float
    l2: float
    nan: int
    inf: int
    digest: str
    samples: tuple[float, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def vectors(self) -> int:
        """Number of vectors along the last dimension."""
        return self.numel // self.shape[-1] if self.numel and self.shape else 1

    @property
    def rms(self) -> float:
        """Root mean square."""
        return self.l2 / math.sqrt(self.numel) if self.numel else 0.0


@dataclass(frozen=True)
class RankDump:
    """The tensors of one rank in one step.

    Attributes:
        tensors: in the order of execution.
        values: safetensors file with the whole tensors by `order`; None if only statistics were written.
        row_hashes: one for each row of token ids, in the order of the micro-batches; empty if not written.
        row_begins: number of padding tokens before each of these rows; empty if no row has any.
    """

    path: Path
    world_size: int
    tensors: Mapping[TensorKey, TensorStatistics]
    values: Path | None = None
    row_hashes: tuple[str, ...] = ()
    row_begins: tuple[int, ...] = ()


@dataclass(frozen=True)
class Dump:
    """The dumped steps of a training.

    Attributes:
        files: step -> rank -> file.
        read: reads one file.
    """

    files: Mapping[int, Mapping[int, Path]]
    read: Callable[[Path], RankDump]


def find_dump(directory: Path) -> Dump | None:
    """The dump in `directory/step-N/rank_R.jsonl`; None if there is none."""
    files: dict[int, dict[int, Path]] = {}
    count = 0
    for step_directory in sorted(directory.iterdir()) if directory.is_dir() else ():
        step = _STEP.fullmatch(step_directory.name)
        if step is None or not step_directory.is_dir():
            continue
        for file in sorted(step_directory.iterdir()):
            if rank := _RANK.fullmatch(file.name):
                files.setdefault(int(step[1]), {})[int(rank[1])] = file
                count += 1
                if count > _MOST_FILES:
                    raise damaged(directory, f"it contains more than {_MOST_FILES:,} files")
    return Dump(files, read_rank) if files else None


def read_rank(path: Path) -> RankDump:
    """Read one file.

    Raises:
        DataError: the file is not a dump, it has another format, or a field has the wrong type.
        RecipeError: it is not a regular file, or too large.
        MachineError: it cannot be read.
    """
    lines = read_regular_file(path, _MOST_BYTES).split(b"\n")
    header = _parsed(lines[0], path, 1)
    format_number = header.get("format")
    if type(format_number) is int and format_number != FORMAT:
        raise DataError(
            f"the dump has format {format_number}; this version of ascendtune reads format {FORMAT}",
            code="dump-format-unsupported",
            remedy="dump both sides with the same version of ascendtune",
            where=f"{path}:1",
        )
    if format_number != FORMAT:
        raise damaged(f"{path}:1", f"its format is not {FORMAT}")
    for name, pattern, part in (("step", _STEP, path.parent.name), ("rank", _RANK, path.name)):
        number_in_name = pattern.fullmatch(part)
        if number_in_name and header.get(name) != int(number_in_name[1]):
            raise damaged(f"{path}:1", f"its {name} differs from the one in its path")
    tensors: dict[TensorKey, TensorStatistics] = {}
    counts: Counter[TensorKey] = Counter()
    for number, row in enumerate(_rows(lines[1:], path), 2):
        if row is not None:
            try:
                key, tensor = _tensor(row)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise damaged(f"{path}:{number}", "a field is missing or has the wrong type") from error
            add_tensor(tensors, counts, key, tensor)
    world_size = header.get("world_size")
    values = path.with_suffix(".safetensors") if header.get("content") == "tensors" else None
    hashes = _row_hashes(header.get("row_hashes", []), path)
    begins = header.get("row_begins", [])
    if type(begins) is not list or len(begins) > _MOST_ROWS or any(type(each) is not int for each in begins):
        raise damaged(f"{path}:1", "its row_begins are not a list of whole numbers")
    return RankDump(path, world_size if type(world_size) is int else 1, tensors, values, hashes, tuple(begins))


def _row_hashes(value: Any, path: Path) -> tuple[str, ...]:
    if type(value) is not list or len(value) > _MOST_ROWS:
        raise damaged(f"{path}:1", "its row_hashes are not a list of strings")
    try:
        return tuple(map(checked_text, value))
    except TypeError as error:
        raise damaged(f"{path}:1", "its row_hashes are not a list of strings") from error


def add_tensor(
    tensors: dict[TensorKey, TensorStatistics], counts: Counter[TensorKey], key: TensorKey, tensor: TensorStatistics
) -> None:
    """Add a tensor of any shape under the first free `nth`.

    Args:
        key: with `nth` 0.
        counts: key with `nth` 0 -> number of tensors added under it; updated here.
    """
    tensors[key._replace(nth=counts[key]) if counts[key] else key] = tensor
    counts[key] += 1


def read_values(dump: RankDump, tensor: TensorStatistics) -> Floats | None:
    """The whole tensor, flat.

    Returns:
        (numel,) float64; None if it was not written, is too large, or has a dtype that numpy does not support. A tensor
        without dtype stands for one that this side does not have: its `order` is that of the other side.

    Raises:
        RecipeError: the file is not safetensors.
        MachineError: it cannot be read.
    """
    if dump.values is None or not tensor.dtype or not dump.values.exists():
        return None
    stored = read_safetensors_header(dump.values).tensors.get(str(tensor.order))
    if stored is None or stored.dtype not in _UNSIGNED or math.prod(stored.shape) > _MOST_VALUES:
        return None
    with open_foreign(dump.values) as file:
        file.seek(stored.begin)
        bits = np.frombuffer(file.read(stored.size), _UNSIGNED[stored.dtype])
    if stored.dtype == "BF16":
        # A bfloat16 is the upper half of a float32.
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.astype(np.float64)


def _rows(lines: list[bytes], path: Path) -> list[dict[str, Any] | None]:
    """One object per line, None for an empty line."""
    if lines and not lines[-1]:
        lines.pop()
    try:
        # A third faster than line by line.
        together = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        together = []
    if len(together) == len(lines) and all(type(each) is dict for each in together):
        return list(together)
    return [_parsed(line, path, number) if line else None for number, line in enumerate(lines, 2)]


def _parsed(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise damaged(f"{path}:{number}", "the line is not JSON") from error
    if not isinstance(row, dict):
        raise damaged(f"{path}:{number}", "the line is not an object")
    return row


def _tensor(row: Mapping[str, Any]) -> tuple[TensorKey, TensorStatistics]:
    phase, micro_batch = row["phase"], row["micro_batch"]
    if phase not in PHASES:
        raise ValueError(phase)
    key = TensorKey(
        phase,
        None if micro_batch is None else checked_size(micro_batch),
        checked_text(row["name"]),
        checked_text(row["slot"]),
        0,
    )
    samples = row["samples"]
    if type(samples) is not list or len(samples) > _MOST_SAMPLES:
        raise ValueError(samples)
    return key, TensorStatistics(
        checked_size(row["order"]),
        checked_text(row["kind"]),
        checked_shape(row["shape"]),
        checked_text(row["dtype"]),
        number_or_nan(row["min"]),
        number_or_nan(row["max"]),
        number_or_nan(row["mean"]),
        number_or_nan(row["l2"]),
        checked_size(row["nan"]),
        checked_size(row["inf"]),
        checked_text(row["hash"]),
        _samples(samples),
    )


def _samples(values: list[Any]) -> tuple[float, ...]:
    if set(map(type, values)) == {float} and math.isfinite(sum(values)):
        return tuple(values)
    return tuple(map(number_or_nan, values))


def checked_text(value: Any) -> str:
    """`value` if it is a short string; the empty string for None.

    Raises:
        TypeError: it is something else.
    """
    if value is None:
        return ""
    if type(value) is not str or len(value) > _LONGEST_TEXT:
        raise TypeError(value)
    return value


def checked_size(value: Any) -> int:
    """`value` if it is a non-negative integer.

    Raises:
        TypeError: it is something else.
    """
    if type(value) is not int or not 0 <= value <= _LARGEST_SIZE:
        raise TypeError(value)
    return value


def checked_shape(value: Any) -> tuple[int, ...]:
    """`value` as a shape, if it is a list of sizes.

    Raises:
        TypeError: it is something else.
    """
    if type(value) is not list or len(value) > _MOST_DIMENSIONS:
        raise TypeError(value)
    shape = tuple(map(checked_size, value))
    if math.prod(shape) > _LARGEST_SIZE:
        raise TypeError(value)
    return shape


def number_or_nan(value: Any) -> float:
    """`value` as a float; NaN for null and for non-finite numbers.

    Raises:
        TypeError: it is not a number.
    """
    if type(value) is float:
        return value if math.isfinite(value) else math.nan
    if value is None:
        return math.nan
    if type(value) is not int and type(value) is not bool:
        raise TypeError(value)
    return float(value)


def damaged(where: str | Path, why: str) -> DataError:
    """The error for a dump that cannot be read."""
    return DataError(
        f"the dump cannot be read: {why}",
        code="dump-damaged",
        remedy="copy it again, or dump the step again",
        where=where,
    )
