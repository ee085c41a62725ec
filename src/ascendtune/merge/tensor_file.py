"""safetensors files tensor by tensor: how one is written without holding it whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import IO

_CHUNK = 16 << 20


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
