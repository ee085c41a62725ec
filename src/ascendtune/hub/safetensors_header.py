"""The header of a safetensors file: its tensors and their positions. Read and checked without torch.

The format: 8 bytes little-endian length, a JSON header {name: {dtype, shape, data_offsets}}, then the data without gaps
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.errors import RecipeError
from ascendtune.core.foreign_json import LFS_POINTER, open_foreign, parsed_json, remedy_for_damaged, shown_value

_LONGEST_HEADER = 100_000_000
"""The format's own limit, in bytes."""
_MOST_TENSORS = 250_000
"""In one file: all experts of the largest public models are fewer; libraries take a tenth of a millisecond for each."""
_LARGEST = 1 << 48
_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")
"""Dtypes of weights to which an adapter can be added."""
TORCH_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""Dtype in a file -> its name in torch; without those of quantised models."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor in a file."""

    dtype: str
    """With the format's names: F32, BF16, …"""
    shape: tuple[int, ...]
    begin: int
    """First byte in the file."""
    size: int
    """Bytes."""


@dataclass(frozen=True)
class SafetensorsHeader:
    path: Path
    tensors: dict[str, StoredTensor]
    """In the order of their positions in the file."""
    metadata: dict[str, str] | None


def read_safetensors_header(path: Path) -> SafetensorsHeader:
    """The header of `path`.

    Raises:
        RecipeError: not a regular file, not safetensors, cut off, or a header that contradicts itself or the file.
        MachineError: permission is denied, or the disk fails.
    """
    with open_foreign(path) as file:
        file_bytes = os.fstat(file.fileno()).st_size
        begin = file.read(20)
        length = int.from_bytes(begin[:8], "little")
        fits = 2 <= length <= min(file_bytes - 8, _LONGEST_HEADER)
        file.seek(8)
        text = file.read(length) if fits else b""
    if begin.startswith(LFS_POINTER):
        raise RecipeError(
            "this is a Git LFS pointer, not the weights",
            code="git-lfs-pointer",
            remedy=remedy_for_damaged(path, "run `git lfs pull` in the model's directory"),
            where=path,
        )
    if not fits or not text.startswith(b"{"):
        raise _damaged(path, "it does not begin with a header of safetensors")
    header = parsed_json(text, path)
    metadata = _metadata(header.pop("__metadata__", None), path)
    if len(header) > _MOST_TENSORS:
        raise _damaged(path, f"it has {len(header):,} tensors, more than {_MOST_TENSORS:,}")
    tensors = {name: _tensor(path, name, entry, 8 + length) for name, entry in header.items()}
    ordered = dict(sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].size)))
    _require_without_gaps(path, ordered, 8 + length, file_bytes)
    return SafetensorsHeader(path, ordered, metadata)


def bytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Size in bytes of a tensor with a dtype of the format."""
    return math.prod(shape) * _BITS[dtype] // 8


def _metadata(found: Any, path: Path) -> dict[str, str] | None:
    if found is None:
        return None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise _damaged(path, "__metadata__ is not an object of texts")
    return found


def _tensor(path: Path, name: str, entry: Any, start: int) -> StoredTensor:
    if not isinstance(entry, dict):
        raise _damaged(path, f"the header's entry for {name} is not an object")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise _damaged(path, f"the dtype of {name} is {shown_value(dtype)}, which safetensors does not have")
    shape, offsets = _sizes(entry.get("shape")), _sizes(entry.get("data_offsets"))
    if shape is None or (size := bytes_of(dtype, shape)) > _LARGEST:
        raise _damaged(path, f"the shape of {name} is not a list of sizes")
    if offsets is None or len(offsets) != 2 or offsets[1] - offsets[0] != size:
        raise _damaged(path, f"the data_offsets of {name} do not fit its shape and dtype")
    return StoredTensor(dtype, shape, start + offsets[0], size)


def _sizes(found: Any) -> tuple[int, ...] | None:
    if isinstance(found, list) and all(type(each) is int and 0 <= each <= _LARGEST for each in found):
        return tuple(found)
    return None


def _require_without_gaps(path: Path, tensors: dict[str, StoredTensor], end: int, size: int) -> None:
    for name, tensor in tensors.items():
        if tensor.begin != end:
            raise _damaged(path, f"the data of {name} overlaps another tensor's, or leaves a gap")
        end += tensor.size
    if end != size:
        raise _damaged(path, f"its header describes {end:,} bytes, the file has {size:,}")


def _damaged(path: Path, why: str) -> RecipeError:
    return RecipeError(
        f"the weight file is damaged or cut off: {why}",
        code="weight-file-damaged",
        remedy=remedy_for_damaged(path),
        where=path,
    )
