"""A data file as bytes and as lines of text: gzip undone, UTF-8 insisted on, every fault named by its place."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from ascendtune.core.errors import DataError, read_fault

_GZIP = b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


_LONGEST_LINE = 512 << 20


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The content of `path`, uncompressed.

    Raises:
        DataError: it is none, or the gzip stream is damaged.
        MachineError: it may not be read, or the disk fails.
    """
    try:
        with path.open("rb") as file:
            compressed = path.suffix.lower() == ".gz" or file.read(2) == _GZIP
            file.seek(0)
            # GzipFile reads as a binary file does; only its declared type is another.
            yield cast(IO[bytes], gzip.GzipFile(fileobj=file)) if compressed else file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"the gzip file is damaged or cut off: {error}",
            remedy="copy or download it again; `gzip -t` checks it",
            where=path,
        ) from error
    except OSError as error:
        fault = DataError(f"cannot be read: {error.strerror or error}", remedy="check the file", where=path)
        raise read_fault(error, path) or fault from error


def head(path: Path, size: int = 4096) -> bytes:
    """The first bytes, uncompressed."""
    with opened(path) as file:
        return file.read(size)


def read_text(path: Path) -> str:
    """The whole file.

    Raises:
        DataError: not UTF-8; names line and byte.
    """
    with opened(path) as file:
        content = file.read()
    _refuse_utf16(content, path)
    content = content.removeprefix(_UTF8_MARK)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _not_utf8(path, line, error.start - content.rfind(b"\n", 0, error.start), content[error.start]) from error


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line with its line end), one after the other.

    Raises:
        DataError: not UTF-8; names line and byte.
    """
    with opened(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), b""), 1):
            if len(line) > _LONGEST_LINE:
                raise DataError(
                    f"this line is longer than {_LONGEST_LINE >> 20} MiB",
                    remedy="write one row a line, and divide a text of this size",
                    where=f"{path}:{number}",
                )
            if number == 1:
                _refuse_utf16(line, path)
                line = line.removeprefix(_UTF8_MARK)
            try:
                yield number, line.decode()
            except UnicodeDecodeError as error:
                raise _not_utf8(path, number, error.start + 1, line[error.start]) from error


def _refuse_utf16(content: bytes, path: Path) -> None:
    if content.startswith(_UTF16_MARKS):
        raise DataError(
            "the file is UTF-16, not UTF-8",
            remedy=f"convert it: iconv -f UTF-16 -t UTF-8 '{path.name}' > converted{''.join(path.suffixes)}",
            where=path,
        )


def _not_utf8(path: Path, line: int, column: int, byte: int) -> DataError:
    return DataError(
        f"not UTF-8: byte 0x{byte:02x} at byte {column} of line {line}",
        remedy=f"convert it, e.g. iconv -f GB18030 -t UTF-8 '{path.name}'; `file -i` guesses its encoding",
        where=f"{path}:{line}",
    )
