"""Reading traces piece by piece, whole or damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.unit.check.profile.traces import op, write

from ascendtune.check.profile import trace_file
from ascendtune.check.profile.trace import read_trace
from ascendtune.check.profile.trace_file import TraceFile
from ascendtune.core.errors import AscendtuneError

EVENTS = [op(f"aten::mm {number} \u5929", 10.0 * number, 5.5) for number in range(50)]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
def test_events_are_the_same_for_every_size_of_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, chunk: int
) -> None:
    monkeypatch.setattr(trace_file, "_CHUNK", chunk)
    file = TraceFile(write(tmp_path / name, EVENTS, ascendtune={"rank": 3}))
    assert list(file.events()) == EVENTS
    assert file.values["ascendtune"] == {"rank": 3}
    assert file.values["traceName"] == name


def test_a_bare_list_of_events_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(EVENTS))
    assert list(TraceFile(path).events()) == EVENTS


def test_events_that_are_not_objects_and_fields_of_wrong_types_are_skipped(tmp_path: Path) -> None:
    odd = [
        {**EVENTS[0], "ts": "soon"},
        {**EVENTS[0], "dur": -1},
        {**EVENTS[0], "dur": 1e300},
        {**EVENTS[0], "ts": True},
        {**EVENTS[0], "name": ["aten::mm"]},
        {**EVENTS[0], "cat": {}},
        {**EVENTS[0], "pid": {}, "tid": [], "args": []},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [1, None, [], "x", *odd, EVENTS[1]]}).replace("1e+300", "1e999"))
    assert len(read_trace(path)) == 2


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "7", '{"traceEvents": [', '{"traceEvents": [{"ph": "X"}', '{"traceEvents": [{"ph": ]}',
        '{"traceEvents": [{"ts": ' + "9" * 5000 + "}]}", '{"a" 1}', "{1: 2}", '{"traceEvents": []',
        '{"traceEvents": [' + "[" * 100_000, '{"a": ' + '{"a":' * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(AscendtuneError) as caught:
        read_trace(path)
    assert caught.value.code == "invalid-trace"


def test_a_compressed_trace_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "trace.json.gz", EVENTS)
    whole.write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(AscendtuneError) as caught:
        read_trace(whole)
    assert caught.value.code == "invalid-trace"


def test_a_trace_that_decompresses_to_more_than_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(trace_file, "_CHUNK", 1 << 16)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (2 << 20)))
    with pytest.raises(AscendtuneError) as caught:
        read_trace(path)
    assert (caught.value.code, caught.value.remedy) == ("invalid-trace", "record fewer steps")


def test_a_value_longer_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "_LARGEST_VALUE", 1 << 10)
    monkeypatch.setattr(trace_file, "_CHUNK", 1 << 9)
    path = write(tmp_path / "trace.json", [op("x" * 10_000, 0, 1)])
    with pytest.raises(AscendtuneError) as caught:
        read_trace(path)
    assert caught.value.code == "invalid-trace"


def test_a_trace_without_operators_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AscendtuneError) as caught:
        read_trace(write(tmp_path / "trace.json", []))
    assert caught.value.code == "invalid-trace"
