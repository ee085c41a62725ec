"""Decompresses logs, such as rotated ones: gzip, xz and bzip2."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import shlex
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedReader, RawIOBase
from typing import BinaryIO, Protocol, cast

from ascendtune.core.errors import InputError

SUFFIXES = (".gz", ".xz", ".bz2", ".zst", ".lz4", ".Z")
DAMAGED = "the compressed file {name} is cut off or damaged after line {line:,}"
TOO_LARGE = "the compressed file {name} holds more than a hundred times its size, and was read up to line {line:,}"
_PEEKED = 10
_GZIP, _XZ, _BZIP2 = re.compile(rb"\x1f\x8b"), re.compile(rb"\xfd7zXZ\0"), re.compile(rb"BZh[1-9]1AY&SY")
_OTHERS = (
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -dc"),
    (b"\x1f\x9d", "compress", "zcat"),
    (b"PK\x03\x04", "zip", "unzip -p"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z x -so"),
)
"""(first bytes, format, command that decompresses it): formats that Python 3.11 cannot read."""
_PIECE = 1 << 16
_MOST_DICTIONARY = 256 << 20
"""Bytes of memory for an xz decoder; `xz -9` needs 65 MiB."""
_LEAST_BOUND, _MOST_RATIO = 1 << 30, 100
"""A file may decompress to this many bytes, or this many times its size: few logs compress better, bombs do."""
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


class Decoder(Protocol):
    """Common interface of the decoders of bz2 and lzma."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class Pieces:
    """A log, read piece by piece.

    Args:
        read: returns at most so many bytes; raises one of `_DAMAGED` if a compressed log is cut off or damaged.
        cut_off: called with the reason at that place, and after `most` bytes.
    """

    def __init__(self, read: Callable[[int], bytes], cut_off: Callable[[str], None], most: int | None = None) -> None:
        self._read = read
        self._cut_off = cut_off
        self._left = most

    def next(self, most: int) -> bytes:
        """Next bytes, at most `most`; empty at the end."""
        if self._left is None:
            return self._read(most)
        try:
            piece = self._read(most) if self._left > 0 else b""
        except _DAMAGED:
            self._left = 0
            self._cut_off(DAMAGED)
            return b""
        except OSError as error:
            if error.errno is not None:
                raise
            # bzip2 reports damaged data by an OSError without errno.
            self._left = 0
            self._cut_off(DAMAGED)
            return b""
        self._left -= len(piece)
        if piece and self._left <= 0:
            self._cut_off(TOO_LARGE)
        return piece


@contextmanager
def pieces_of(file: BinaryIO, name: str, size: int, cut_off: Callable[[str], None], start: int = 0) -> Iterator[Pieces]:
    """Open a file, from the byte `start` on, or the decompressed content of a compressed file.

    Args:
        size: of the file, in bytes.

    Raises:
        InputError: the compression format is not supported.
    """
    most = max(_LEAST_BOUND, _MOST_RATIO * size)
    with BufferedReader(cast(RawIOBase, file)) as opened:
        begin = opened.peek(_PEEKED)[:_PEEKED]
        _refuse_others(begin, name)
        if _GZIP.match(begin):
            # GzipFile does not close `opened`.
            with gzip.GzipFile(fileobj=opened) as unpacked:
                yield Pieces(unpacked.read1, cut_off, most)
        elif _XZ.match(begin):
            make = partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _MOST_DICTIONARY)
            yield Pieces(_Streams(cast(BinaryIO, opened), make).read, cut_off, most)
        elif _BZIP2.match(begin):
            yield Pieces(_Streams(cast(BinaryIO, opened), bz2.BZ2Decompressor).read, cut_off, most)
        else:
            if start:
                opened.seek(start)
            yield Pieces(opened.read, cut_off)


def _refuse_others(begin: bytes, name: str) -> None:
    for magic, program, command in _OTHERS:
        if begin.startswith(magic):
            given = "… | " + command if name == "-" else f"{command} {shlex.quote(name)}"
            raise InputError(
                f"the log is compressed ({program}), which is not read here",
                code="log-compressed",
                remedy=f"{given} | ascendtune explain -",
                where=name,
            )


class _Streams:
    """Consecutive streams of xz or bzip2: programs that use several cores write many."""

    def __init__(self, file: BinaryIO, make: Callable[[], Decoder]) -> None:
        self._file = file
        self._make = make
        self._decoder = make()
        self._given = b""

    def read(self, most: int) -> bytes:
        """At most `most` bytes; empty at the end.

        Raises:
            EOFError: the file is cut off.
        """
        while True:
            if self._decoder.eof:
                self._given = self._decoder.unused_data or self._file.read(_PIECE)
                if not self._given.strip(b"\0"):
                    return b""
                self._decoder = self._make()
            elif self._decoder.needs_input:
                self._given = self._file.read(_PIECE)
                if not self._given:
                    raise EOFError
            piece = self._decoder.decompress(self._given, most)
            self._given = b""
            if piece:
                return piece
