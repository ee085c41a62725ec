"""Logs of any length as blocks of whole lines, in flat memory."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ascendtune.check.explain.log.compressed import Pieces, pieces_of
from ascendtune.check.explain.log.json_lines import unwrapped_lines
from ascendtune.core.errors import InputError
from ascendtune.core.files import is_endless
from ascendtune.core.suggest import run_suggestion
from ascendtune.core.tail import size_of

BLOCK_BYTES = 1 << 18
LONGEST_LINE = 1 << 16
"""Bytes; of a longer line only the beginning and the end are kept."""
CUT = " […] ".encode()
_TO_NEWLINES = bytes.maketrans(b"\r", b"\n")
"""Progress bars end their lines with \\r."""

_SIMPLIFIED = "gb2312"
"""The subset of GBK whose characters have two bytes above 127, nearly all that occur. The second byte of the others
may be a letter: a stray byte in a line of another encoding would take the letter after it."""

_SAMPLE = 1 << 12
_CONTROL = bytes({*range(32), 127} - {*b"\b\t\n\v\f\r\x1b"})
_LEAST_TEXT = 0.98
"""Lowest share of characters that are not control characters; in weights and compressed data it is nine in ten."""
STDIN = "-"
_MOST_OF_STDIN = 200 << 20
"""Assumed size in bytes of compressed standard input."""


def blocks(name: str, start: int = 0, cut_off: Callable[[str], None] = lambda _: None) -> Iterator[bytes]:
    """Read the file, or standard input for "-", in blocks of whole lines; the last line may lack its end.

    A last line without an end is part of the block before it, together with the lines above it. The middle of a very
    long line is replaced by `CUT`.

    Args:
        start: offset in bytes; a line begins there.
        cut_off: called with the reason, before the last block is yielded, if a compressed log is cut off, damaged or
            too large.

    Raises:
        InputError: the file cannot be read, or is not text.
    """
    try:
        if name != STDIN and is_endless(Path(name)):
            remedy = f"give a log file; or its text: head -c 1G '{name}' | ascendtune explain -"
            raise InputError("a pipe or a device, not a log", code="not-a-log", remedy=remedy, where=name)
        size = _MOST_OF_STDIN if name == STDIN else size_of(Path(name))
        with pieces_of(
            sys.stdin.buffer if name == STDIN else Path(name).open("rb"), name, size, cut_off, start
        ) as pieces:
            block = b""
            for lines in _whole_lines(_texts(pieces, name)):
                if block.endswith(b"\n") and not lines.endswith(b"\n"):
                    block += lines
                    continue
                if block:
                    yield _in_utf8(unwrapped_lines(block))
                block = lines
            if block:
                yield _in_utf8(unwrapped_lines(block))
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


def _texts(pieces: Pieces, name: str) -> Iterator[bytes]:
    """Text of the pieces, with \\n as the only line end."""
    is_first, has_crlf, wide = True, False, None
    while new := pieces.next(BLOCK_BYTES):
        if is_first and new.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            # PowerShell's redirection.
            wide = codecs.getincrementaldecoder("utf-16")(errors="replace")
        new = wide.decode(new).encode(errors="replace") if wide else new
        if is_first:
            _require_text(new, name)
            is_first, has_crlf = False, b"\r\n" in new[:LONGEST_LINE]
        if has_crlf:
            if new.endswith(b"\r"):
                behind = pieces.next(2 if wide else 1)
                new += wide.decode(behind).encode(errors="replace") if wide else behind
            new = new.replace(b"\r\n", b"\n")
        # A log that was truncated while it was written contains many NUL bytes.
        yield new.replace(b"\0", b"").translate(_TO_NEWLINES)


def _whole_lines(texts: Iterable[bytes]) -> Iterator[bytes]:
    """Blocks of whole lines, the last one perhaps without a line end; very long lines lack their middle."""
    head = rest = b""
    for text in texts:
        data = rest + text
        end = data.rfind(b"\n") + 1
        if not end and len(data) < 2 * BLOCK_BYTES:
            rest = data
            continue
        if not end:
            head, rest = head or data[: LONGEST_LINE // 2], data[-LONGEST_LINE // 2 :]
            continue
        if head:
            first = data.index(b"\n")
            data = head + CUT + data[max(0, first - LONGEST_LINE // 2) :]
            end, head = data.rfind(b"\n") + 1, b""
        yield data[:end]
        rest = data[end:]
    if head:
        rest = head + CUT + rest
    if rest:
        yield rest


def _in_utf8(block: bytes) -> bytes:
    """Convert the GBK lines of a block to UTF-8: on hosts with a GBK locale programs print both."""
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
    """Number of lines before the byte `end`."""
    if not end:
        return 0
    with Path(name).open("rb") as file:
        sizes = [BLOCK_BYTES] * (end // BLOCK_BYTES) + [end % BLOCK_BYTES]
        return sum(file.read(size).translate(_TO_NEWLINES).count(b"\n") for size in sizes)


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
