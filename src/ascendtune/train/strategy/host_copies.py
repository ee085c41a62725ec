"""Copies of gathered weights on the host: in memory, or in a file where they would fill it."""

from __future__ import annotations

import os
import tempfile
from mmap import ALLOCATIONGRANULARITY, mmap
from pathlib import Path

import psutil
import torch

from ascendtune.machine.host_memory import usable_memory_bytes

_SHARE_OF_MEMORY = 0.5
"""Share of the available host memory for copies; exporting needs some of the rest."""


def bytes_in_memory() -> int:
    """Bytes of copies that this host's memory has room for now."""
    return int(_SHARE_OF_MEMORY * min(psutil.virtual_memory().available, usable_memory_bytes()))


class HostCopies:
    """Makes copies of tensors. Those beyond `in_memory` bytes are in a file without a name in `directory`.

    The kernel writes the file's pages to the disk when memory is needed, so a host can export a model that is larger
    than its memory. The file's space returns when its last copy is freed.
    """

    def __init__(self, directory: Path, in_memory: int) -> None:
        self._directory, self._left = directory, in_memory
        self._file: int | None = None
        self._end = 0

    def copy(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """`tensor`, any shape, on the CPU in `dtype`; the tensor itself if it is that already.

        Raises:
            OSError: the disk has no room for the file.
        """
        if tensor.device.type == "cpu" and tensor.dtype == dtype:
            return tensor
        size = tensor.numel() * dtype.itemsize
        if size <= self._left:
            self._left -= size
            return tensor.to("cpu", dtype)
        return torch.frombuffer(self._pages(size), dtype=dtype).view(tensor.shape).copy_(tensor)

    def close(self) -> None:
        """Close the file; copies keep their pages."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _pages(self, size: int) -> mmap:
        """The next `size` bytes of the file. Its space is allocated: a full disk would end the process at a write."""
        if self._file is None:
            with tempfile.TemporaryFile(dir=self._directory) as file:
                self._file = os.dup(file.fileno())
        start, self._end = self._end, self._end + -(-size // ALLOCATIONGRANULARITY) * ALLOCATIONGRANULARITY
        os.posix_fallocate(self._file, start, size)
        return mmap(self._file, size, offset=start)
