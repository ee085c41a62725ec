"""safetensors files tensor by tensor: where each lies, and how one is written without holding it whole.

The format: 8 bytes little-endian length, a JSON header {name: {dtype, shape, data_offsets}}, then the data without gaps
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ascendtune.core.errors import InputError

_CHUNK = 16 << 20
_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}


@dataclass(frozen=True)
class Tensor:
    """One tensor in a file."""

    dtype: str
    """In the format's own words: F32, BF16, …"""
    shape: tuple[int, ...]
    begin: int
    """First byte in the file."""
    size: int
    """Bytes."""


@dataclass(frozen=True)
class TensorFile:
    """The header of a safetensors file."""

    path: Path
    tensors: dict[str, Tensor]
    """In the order in which they lie in the file."""
    metadata: dict[str, str] | None


def read_header(path: Path) -> TensorFile:
    """Where everything lies in `path`.

    Raises:
        InputError: the file is not safetensors, or cut off.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            size = os.fstat(file.fileno()).st_size
            header = json.loads(file.read(length) if length < size else b"")
        metadata = header.pop("__metadata__", None)
        tensors = {name: _tensor(entry, 8 + length) for name, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError("not a whole safetensors file", remedy="copy or download it again", where=path) from error
    if size != max((each.begin + each.size for each in tensors.values()), default=8 + length):
        raise InputError("the weight file is damaged or cut off", remedy="copy or download it again", where=path)
    ordered = sorted(tensors.items(), key=lambda item: item[1].begin)
    return TensorFile(path, dict(ordered), metadata)


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor; types smaller than two bytes are never computed with, only copied."""
    return math.prod(shape) * _BYTES.get(dtype, 1)


def write_header(
    file: IO[bytes], tensors: Iterable[tuple[str, str, tuple[int, ...], int]], metadata: dict[str, str] | None
) -> None:
    """Begin a file whose data will follow in this order.

    Args:
        tensors: name, type, shape, bytes.
    """
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    offset = 0
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    # The data begins at a multiple of eight bytes, so that it can be mapped.
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)


def copy_bytes(source: IO[bytes], begin: int, size: int, target: IO[bytes]) -> None:
    """Append `size` bytes of `source` from `begin` on; inside the kernel where the file system can."""
    target.flush()
    done = 0
    try:
        while done < size:
            copied = os.copy_file_range(source.fileno(), target.fileno(), size - done, begin + done)
            if copied == 0:
                raise EOFError(f"{size - done} bytes are missing")
            done += copied
    except OSError:
        # Other file systems, old kernels. A full disk is told by the write below.
        source.seek(begin + done)
        target.seek(0, os.SEEK_END)
        while done < size:
            chunk = source.read(min(_CHUNK, size - done))
            if not chunk:
                raise EOFError(f"{size - done} bytes are missing") from None
            target.write(chunk)
            done += len(chunk)
    target.seek(0, os.SEEK_END)


def _tensor(entry: dict[str, list[int]], start: int) -> Tensor:
    begin, end = entry["data_offsets"]
    return Tensor(str(entry["dtype"]), tuple(map(int, entry["shape"])), start + int(begin), int(end) - int(begin))
