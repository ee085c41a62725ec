"""Rows in the file of a wandb run: read, counted against what a server has, and left out of a copy."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest

from ascendtune.train.report.wandb_file import (
    HistoryRow,
    count_arrived,
    destination,
    is_exit,
    messages,
    rows,
    without_rows,
)

_REAL = Path(__file__).with_name("offline_run.wandb").read_bytes()
"""Written by the real client (0.31.0): 20 rows."""


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _row(**values: object) -> bytes:
    items = [_field(2, key.encode()) + _field(16, json.dumps(value).encode()) for key, value in values.items()]
    return _field(2, b"".join(_field(1, each) for each in items))


_HEADER = b":W&B\xe1\xbe\x00"


def _log(*contents: bytes) -> bytes:
    body = _HEADER
    for each in contents:
        body += struct.pack("<IHB", zlib.crc32(each, zlib.crc32(b"\x01")), len(each), 1) + each
    return body


def _read(content: bytes) -> list[bytes | None]:
    return [message for message, _ in messages(content)]


def test_rows_of_the_real_client_have_steps_and_times() -> None:
    found = rows(_REAL)
    assert [each.step for each in found] == [*range(20)]
    times = [each.time for each in found if each.time is not None]
    assert len(times) == 20 and times == sorted(times) and times[0] > 1.7e9


@pytest.mark.parametrize("count", [0, 1, 8, 20, 99])
def test_copy_lacks_the_first_rows_and_nothing_else(count: int) -> None:
    copy = without_rows(_REAL, count)
    assert rows(copy) == rows(_REAL)[count:]
    dropped = [each for each in _read(_REAL) if each not in _read(copy)]
    assert len(dropped) == min(count, 20) and not any(is_exit(each or b"") for each in dropped)
    assert destination(copy) == destination(_REAL)
    if not count:
        assert copy == _REAL


def test_copy_of_messages_over_several_blocks_is_read_again() -> None:
    sizes = [1, 32_700, 32_754, 32_755, 32_761, 100_000, 200_000, 7]
    large = [_field(3, b"x" * size) for size in sizes]
    content = _HEADER
    for each in large:
        content = _appended(content, each)
    assert _read(content) == large
    row = _row(_step=0)
    assert without_rows(_appended(_log(row), large[5]), 1) == _appended(_HEADER, large[5])
    assert _read(without_rows(_appended(content, row), 1)) == large


def _appended(content: bytes, message: bytes) -> bytes:
    """The file with one more message, in parts where it does not fit into the block."""
    begins = True
    while begins or message:
        left = (32 << 10) - len(content) % (32 << 10)
        if left < 7:
            content += b"\0" * left
            continue
        part, message = message[: left - 7], message[left - 7 :]
        kind = {(True, False): 1, (True, True): 2, (False, True): 3, (False, False): 4}[begins, bool(message)]
        content += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
        begins = False
    return content


def test_project_of_the_run_is_read() -> None:
    run = _field(17, _field(1, b"abc") + _field(2, b"team") + _field(3, b"qwen"))
    assert destination(_log(_row(_step=0), run)) == ("team", "qwen")
    assert destination(_log(_field(17, _field(1, b"abc")))) == destination(_log()) == ("", "")


def test_copy_ends_before_damage() -> None:
    content = _log(_row(_step=0), _row(_step=1))
    assert rows(without_rows(content[:-1] + b"!", 0)) == [HistoryRow(0, None)]


_ROWS = [HistoryRow(step, 100.0 + step) for step in range(20)]


@pytest.mark.parametrize(
    ("step", "time", "last", "arrived"),
    [
        (7, 107.0, 7, 8),
        (19, 119.0, 19, 20),
        (19, 119.0, 7, 8),  # the summary is ahead of the rows
        (107, 107.0, 107, 8),  # a run that was resumed offline: the server counts from 100
        (7, 107.00004, 7, 8),
        (7, 108.5, 7, None),  # a row of another file
        (7, 0.0, 7, None),
    ],
)
def test_rows_that_a_server_has_are_counted(step: int, time: float, last: int, arrived: int | None) -> None:
    assert count_arrived(_ROWS, summary_step=step, summary_time=time, last_step=last) == arrived


@pytest.mark.parametrize("value", [1e400, "text", None, [], "1" * 5000])
def test_row_with_a_strange_step_or_time_is_a_row(value: object) -> None:
    content = _log(_row(_step=value, _timestamp=value), _row(_step=3, _timestamp=5))
    assert rows(content) == [HistoryRow(-1, None), HistoryRow(3, 5.0)]
    assert count_arrived(rows(content), summary_step=3, summary_time=5.0, last_step=3) == 2
