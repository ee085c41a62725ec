"""Logs of any length as blocks of whole lines, in flat memory."""

from __future__ import annotations

import codecs
import gzip
import json
import shlex
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BufferedReader, RawIOBase
from pathlib import Path
from typing import BinaryIO, cast

from ascendtune.core.errors import InputError
from ascendtune.core.files import is_endless, walk
from ascendtune.core.rundir import RunDir
from ascendtune.core.suggest import run_suggestion
from ascendtune.core.tail import size_of
from ascendtune.core.units import format_bytes

BLOCK_BYTES = 1 << 18
_LONGEST_LINE = 1 << 16
"""A longer one is cut in pieces."""
_TO_NEWLINES = bytes.maketrans(b"\r", b"\n")
"""Progress bars end their lines with \\r."""

_GZIP, _GZIP_SUFFIX = b"\x1f\x8b", ".gz"
_WRAPPED = b'{"log":"', b'{"log": "'

_SIMPLIFIED = "gb2312"
"""GBK's characters of two bytes above 127, nearly all that are written. The others' second byte may be a letter: a
stray byte in a line of another encoding would take the letter after it."""

_SAMPLE = 1 << 12
_CONTROL = bytes({*range(32), 127} - {*b"\b\t\n\v\f\r\x1b"})
_LEAST_TEXT = 0.98
"""Share of characters that are no control characters; in weights and compressed data they are nine in ten."""
_SUFFIXES = (".log", ".out", ".err", ".txt")
_MOST_ENTRIES = 100_000
"""Files and directories below a directory of logs; a whole file system has millions."""
_MOST_LOGS = 5_000
_MOST_BYTES = 20 << 30
"""Of all logs of a directory: five minutes of one core."""

STDIN = "-"


def blocks(name: str, start: int = 0, cut_off: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """The file, or standard input for "-", in blocks that end with a line's end.

    A last line without its end belongs to the block before it, so that it is seen from the lines above.

    Args:
        start: the byte at which to begin, where a line does.
        cut_off: called where a compressed log is cut off, or damaged within, before the last block is yielded.

    Raises:
        InputError: the file cannot be read, or is not text.
    """
    try:
        if name != STDIN and is_endless(Path(name)):
            remedy = f"give a log file; or its text: head -c 1G '{name}' | ascendtune explain -"
            raise InputError("a pipe or a device, not a log", code="not-a-log", remedy=remedy, where=name)
        with _decompressed(sys.stdin.buffer if name == STDIN else Path(name).open("rb")) as file:
            if start:
                file.seek(start)
            is_first, has_crlf, wide = True, False, None
            block = rest = b""
            while new := _piece_of(file, cut_off):
                if is_first and new.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    # PowerShell's redirection.
                    wide = codecs.getincrementaldecoder("utf-16")(errors="replace")
                new = wide.decode(new).encode(errors="replace") if wide else new
                if is_first:
                    _require_text(new, name)
                    is_first, has_crlf = False, b"\r\n" in new[:_LONGEST_LINE]
                if has_crlf:
                    if new.endswith(b"\r"):
                        behind = _piece_of(file, cut_off, 2 if wide else 1)
                        new += wide.decode(behind).encode(errors="replace") if wide else behind
                    new = new.replace(b"\r\n", b"\n")
                # Many stand where a log was cut while it was written.
                new = new.replace(b"\0", b"")
                data = rest + new.translate(_TO_NEWLINES)
                end = data.rfind(b"\n") + 1
                if not end and len(data) < _LONGEST_LINE:
                    rest = data
                    continue
                end = end or len(data)
                if block:
                    yield _in_utf8(_unwrapped(block))
                block, rest = data[:end], data[end:]
            if block.endswith(b"\n"):
                block, rest = block + rest, b""
            yield from (_in_utf8(_unwrapped(each)) for each in (block, rest) if each)
    except PermissionError:
        raise
    except OSError as error:
        usual = "give a log file, a run directory, or - for stdin"
        raise InputError(
            f"the log cannot be read: {error.strerror}",
            code="file-unreadable",
            remedy=run_suggestion(Path(name), usual) if isinstance(error, FileNotFoundError) else usual,
            where=name,
        ) from error


@contextmanager
def _decompressed(file: BinaryIO) -> Iterator[BufferedIOBase]:
    """The file; of one that gzip compressed, such as a log that was rotated, what it holds."""
    with BufferedReader(cast(RawIOBase, file)) as opened:
        if opened.peek(len(_GZIP)).startswith(_GZIP):
            # It does not close the file below it.
            with gzip.GzipFile(fileobj=opened) as unpacked:
                yield unpacked
        else:
            yield opened


def _piece_of(file: BufferedIOBase, cut_off: Callable[[], None], most: int = BLOCK_BYTES) -> bytes:
    """The next bytes; of a compressed log that is cut off, or damaged within, those before that place."""
    if not isinstance(file, gzip.GzipFile):
        return file.read(most)
    try:
        return file.read1(most)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        cut_off()
        return b""


def _unwrapped(block: bytes) -> bytes:
    """The lines as the container wrote them, where they are objects of Docker's log driver json-file."""
    if not block.startswith(_WRAPPED):
        return block
    return b"\n".join(_log_of(line) if line.startswith(_WRAPPED) else line for line in block.split(b"\n"))


def _log_of(line: bytes) -> bytes:
    try:
        said = str(json.loads(line)["log"])
    except (ValueError, RecursionError):
        return line
    # A progress bar is in the same object as what was written behind it.
    return said.rstrip("\r\n").rpartition("\r")[2].replace("\n", " ").encode(errors="replace")


def _in_utf8(block: bytes) -> bytes:
    """The block with its lines in GBK as UTF-8: on hosts with a GBK locale programs print both."""
    if block.isascii() or _is_in(block, "utf-8"):
        return block
    return b"\n".join(
        line.decode(_SIMPLIFIED).encode() if not _is_in(line, "utf-8") and _is_in(line, _SIMPLIFIED) else line
        for line in block.split(b"\n")
    )


def _is_in(text: bytes, encoding: str) -> bool:
    try:
        text.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def lines_before(name: str, end: int) -> int:
    """How many lines stand before the byte `end`."""
    if not end:
        return 0
    with Path(name).open("rb") as file:
        sizes = [BLOCK_BYTES] * (end // BLOCK_BYTES) + [end % BLOCK_BYTES]
        return sum(file.read(size).translate(_TO_NEWLINES).count(b"\n") for size in sizes)


def logs_in(directory: Path) -> list[str]:
    """The logs in a directory and below it, such as one of CANN's or of a scheduler's.

    Raises:
        InputError: there is none, all are those of runs, or the directory holds more than the logs of a training.
    """
    found, runs, entries, size = list[Path](), list[Path](), 0, 0
    for place, directories, names in walk(directory):
        if place == directory:
            runs = sorted(place / name for name in directories if _is_run(place / name))
        entries += len(directories) + len(names)
        logs = [place / name for name in names if name.removesuffix(_GZIP_SUFFIX).endswith(_SUFFIXES)]
        logs = [path for path in logs if path.is_file()]
        found += logs
        size += sum(size_of(path) for path in logs)
        if entries > _MOST_ENTRIES or len(found) > _MOST_LOGS or size > _MOST_BYTES:
            raise InputError(
                f"the directory holds more than the logs of a training: over {_MOST_ENTRIES:,} files, "
                f"{_MOST_LOGS:,} logs or {format_bytes(_MOST_BYTES)} of logs",
                code="directory-too-large",
                remedy="give the directory of one training, or name the files",
                where=directory,
            )
    if runs and all(not {*path.parents}.isdisjoint(runs) for path in found):
        # How a run ended stands in its record, not in its logs alone.
        raise InputError(
            f"{len(runs)} {'run lies' if len(runs) == 1 else 'runs lie'} in this directory; name the one to explain",
            code="directory-of-runs",
            remedy=f"ascendtune explain {shlex.quote(str(runs[-1]))}; `ascendtune runs list` shows how each ended",
            where=directory,
        )
    if not found:
        raise InputError(
            f"neither a run directory nor one with logs ({', '.join(f'*{suffix}' for suffix in _SUFFIXES)})",
            code="no-logs-in-directory",
            remedy="name the files: ascendtune explain DIRECTORY/*",
            where=directory,
        )
    return [str(path) for path in sorted(found)]


def _is_run(directory: Path) -> bool:
    try:
        return RunDir(directory).run_json.is_file()
    except OSError:
        return False


def _require_text(block: bytes, name: str) -> None:
    # Its end: weights begin with a long header that is text.
    sample = block[-_SAMPLE:].replace(b"\0", b"")
    if len(sample.translate(None, _CONTROL)) >= len(sample) * _LEAST_TEXT:
        return
    raise InputError(
        "not a log: the file is not text",
        code="not-a-log",
        remedy="give a log file, a run directory, or - for stdin",
        where=name,
    )
