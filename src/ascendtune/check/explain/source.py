"""Logs of any length as blocks of whole lines, in flat memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from ascendtune.core.errors import InputError

BLOCK_BYTES = 1 << 18
_LONGEST_LINE = 1 << 16
"""A longer one is cut in pieces."""
_TO_NEWLINES = bytes.maketrans(b"\r", b"\n")
"""Progress bars end their lines with \\r."""

STDIN = "-"


def blocks(name: str) -> Iterator[bytes]:
    """The file, or standard input for "-", in blocks that end with a line's end.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with sys.stdin.buffer if name == STDIN else Path(name).open("rb") as file:
            rest = b""
            while new := file.read(BLOCK_BYTES):
                data = rest + new.translate(_TO_NEWLINES)
                end = data.rfind(b"\n") + 1
                if not end and len(data) < _LONGEST_LINE:
                    rest = data
                    continue
                end = end or len(data)
                yield data[:end]
                rest = data[end:]
            if rest:
                yield rest
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", remedy="give a log file, a run directory, or - for stdin", where=name
        ) from error
