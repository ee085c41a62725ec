"""The file of a wandb run, `run-ID.wandb`: reads its messages, and writes it without rows that the server has.

It is a LevelDB log: a header of 7 bytes (":W&B", magic, version), then blocks of 32 KiB with records of CRC-32 (of type
and data), length, type, data. The data of a record of type FULL, or of records FIRST, MIDDLE… and LAST together, is a
protobuf message. Its field 2 is a row of the history, 17 the run, 18 the exit of the run.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

HEADER = b":W&B\xe1\xbe"
_BLOCK, _HEADER_BYTES, _RECORD_HEADER = 32 << 10, 7, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_ROW, _RUN, _EXIT = 2, 17, 18
_ITEM, _KEY, _NESTED_KEY, _VALUE = 1, 1, 2, 16
_ENTITY, _PROJECT = 2, 3
_SAME_SECONDS = 1e-4
"""Tolerance for equal times of one row: a server may have rounded one."""


@dataclass(frozen=True)
class HistoryRow:
    """A row of the history. `time`: seconds since 1970; None if the row has none."""

    step: int
    time: float | None


def messages(content: bytes) -> Iterator[tuple[bytes | None, int]]:
    """Each message and the position after it; None and the position at damage. A truncated tail ends the iteration."""
    position, parts = _HEADER_BYTES, list[bytes]()
    while position + _RECORD_HEADER <= len(content):
        remaining = _BLOCK - position % _BLOCK
        if remaining < _RECORD_HEADER:
            position += remaining
            continue
        check = int.from_bytes(content[position : position + 4], "little")
        length = int.from_bytes(content[position + 4 : position + 6], "little")
        kind = content[position + 6]
        begin, end = position + _RECORD_HEADER, position + _RECORD_HEADER + length
        if end > len(content):
            return
        data = content[begin:end]
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or zlib.crc32(data, zlib.crc32(bytes([kind]))) != check:
            yield None, position
            return
        if kind in (_FULL, _FIRST):
            parts = []
        parts.append(data)
        position = end
        if kind in (_FULL, _LAST):
            yield b"".join(parts), position


def is_exit(message: bytes) -> bool:
    """Whether a message is the exit of the run."""
    return any(field == _EXIT for field, _ in _fields(message))


def destination(content: bytes) -> tuple[str, str]:
    """Entity and project that the run was recorded for; empty if the file does not contain them."""
    for message, _ in messages(content):
        for field, value in _fields(message or b""):
            if field == _RUN:
                texts = {number: text.decode(errors="replace") for number, text in _fields(value)}
                return texts.get(_ENTITY, ""), texts.get(_PROJECT, "")
    return "", ""


def rows(content: bytes) -> list[HistoryRow]:
    """The rows of the history, in the order in which the client sends them."""
    parsed = (_row(message) for message, _ in messages(content) if message is not None)
    return [each for each in parsed if each is not None]


def count_arrived(file_rows: list[HistoryRow], *, summary_step: int, summary_time: float, last_step: int) -> int | None:
    """Number of the file's rows that a server has; None if its newest data are not from this file.

    The client sends rows in order, and with them the summary, which has step and time of a row. This row is searched
    by its time, because the steps of a run that was resumed offline are numbered differently on the server.

    Args:
        summary_step: step of the server's summary.
        summary_time: time of that summary, in seconds since 1970.
        last_step: step of the server's newest row.
    """
    for row in reversed(file_rows):
        if row.time is not None and abs(row.time - summary_time) <= _SAME_SECONDS:
            # The summary may be ahead of the rows.
            newest = row.step + last_step - summary_step
            return next((at for at, each in enumerate(file_rows) if each.step > newest), len(file_rows))
    return None


def without_rows(content: bytes, count: int) -> bytes:
    """The file without its first `count` rows, and without anything after damage or truncation."""
    body, passed = bytearray(content[:_HEADER_BYTES]), 0
    for message, _ in messages(content):
        if message is None:
            break
        if passed < count and _row(message) is not None:
            passed += 1
            continue
        _append(body, message)
    return bytes(body)


def _append(body: bytearray, message: bytes) -> None:
    is_first = True
    while is_first or message:
        remaining = _BLOCK - len(body) % _BLOCK
        if remaining < _RECORD_HEADER:
            body += bytes(remaining)
            continue
        part, message = message[: remaining - _RECORD_HEADER], message[remaining - _RECORD_HEADER :]
        kind = (_LAST if not message else _MIDDLE) if not is_first else (_FULL if not message else _FIRST)
        check = zlib.crc32(part, zlib.crc32(bytes([kind])))
        body += check.to_bytes(4, "little") + len(part).to_bytes(2, "little") + bytes([kind]) + part
        is_first = False


def _row(message: bytes) -> HistoryRow | None:
    for field, value in _fields(message):
        if field == _ROW:
            numbers = dict(_number(item) for kind, item in _fields(value) if kind == _ITEM)
            step = numbers.get("_step")
            return HistoryRow(-1 if step is None else int(step), numbers.get("_timestamp"))
    return None


def _number(item: bytes) -> tuple[str, float | None]:
    """Key and value of an item of a row; the value is None if it is not a number."""
    key, value = "", b""
    for field, content in _fields(item):
        if field in (_KEY, _NESTED_KEY):
            key += content.decode(errors="replace")
        elif field == _VALUE:
            value = content
    if key not in ("_step", "_timestamp"):
        return key, None
    try:
        number = float(json.loads(value))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return key, None
    return key, number if math.isfinite(number) else None


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of each field of a protobuf message; for numbers the content is empty."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind, begin = tag & 7, position
        if kind == 2:
            length, begin = _varint(message, position)
            position = begin + length
        elif kind == 0:
            _, position = _varint(message, position)
            begin = position
        else:
            position += {1: 8, 5: 4}.get(kind, len(message))
            begin = position
        yield tag >> 3, message[begin:position]


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(message) and shift < 64:
        byte = message[position]
        value, shift, position = value | (byte & 127) << shift, shift + 7, position + 1
        if byte < 128:
            break
    return value, position
