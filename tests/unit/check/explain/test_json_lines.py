"""Logs whose lines a collector wrapped in JSON objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.log.json_lines import unwrapped_lines

Explained = Callable[..., Explanation]

_SIZES = "The size of tensor a (4096) must match the size of tensor b (2048) at non-singleton dimension 1"
_LINES = [
    "step 1 loss 2.0",
    "Traceback (most recent call last):",
    '  File "/x/train.py", line 8, in go',
    "    run()",
    f"RuntimeError: {_SIZES}",
]


@pytest.mark.parametrize(
    "fields",
    [
        {"log": "{}\n", "stream": "stderr", "time": "2026-11-29T10:00:00Z"},
        {"stream": "stderr", "log": "{}\n", "time": "2026-11-29T10:00:00Z"},
        {"@timestamp": "2026", "kubernetes": {"pod_name": "train-0"}, "log": "{}"},
        {"insertId": "x", "textPayload": "{}", "severity": "ERROR"},
        {"_HOSTNAME": "n1", "PRIORITY": "6", "MESSAGE": "{}"},
        {"line": "{}", "timestamp": "1"},
        {"timestamp": 1, "message": "{}", "ingestionTime": 1},
        {"timestamp": "2026", "level": "ERROR", "message": "{}"},
        {"ts": "2026", "level": "info", "msg": "{}"},
    ],
)
def test_traceback_is_read_from_the_field_that_holds_its_lines(explained: Explained, fields: dict[str, Any]) -> None:
    def wrapped(line: str) -> str:
        filled = {name: line if value == "{}" else value for name, value in fields.items()}
        return json.dumps({name: line + "\n" if value == "{}\n" else value for name, value in filled.items()})

    first = explained("\n".join(map(wrapped, _LINES)) + "\n").verdict.first

    assert first is not None and first.number == len(_LINES) and _SIZES in first.text
    assert first.trace is not None and first.trace.place == ("/x/train.py", 8, "go")


def test_level_of_a_record_is_kept(explained: Explained) -> None:
    record = json.dumps({"level": "warning", "message": "could not reach the moon: connection failed"})
    assert explained(f"{record}\n{json.dumps({'level': 'info', 'message': 'step 2'})}\n").is_healthy


def test_sizes_in_one_field_of_a_line_are_told(explained: Explained) -> None:
    line = f'ts=2026 level=error msg="training failed" err="RuntimeError: {_SIZES}"\n'
    assert explained(line).headline().endswith(_SIZES)


_TEXTS = [
    "step 1",
    "",
    "50%|##| 1/2\r60%|###| 2/2",
    'a "tide" of \\x',
    "潮汐 élan",
    "\x1b[31mred\x1b[0m <b>",
    "a\tb",
    "{7}",
]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", ""])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_line_of_docker_is_read_without_a_parser_as_with_one(end: str, is_ascii: bool) -> None:
    """An additional field keeps a line from the quick way."""
    fields = [{"log": text + end, "stream": "stdout", "time": "2026-11-29T10:00:00.1Z"} for text in _TEXTS]

    def block(records: list[dict[str, Any]]) -> bytes:
        lines = (json.dumps(each, ensure_ascii=is_ascii, separators=(",", ":")) for each in records)
        return "".join(f"{line}\n" for line in lines).encode()

    read = unwrapped_lines(block(fields))

    assert read == unwrapped_lines(block([{**each, "more": 1} for each in fields]))
    assert read.decode().split("\n")[:3] == ["step 1", "", "60%|###| 2/2"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"log":"tide\\n","stream":"stdout","time":"2026"} and more',
        b'{"log":"tide\\n","stream":"stdout","time":"2026"',
        b'{"log":"ti\x01de\\n","stream":"stdout","time":"2026"}',
        b'{"log":"ti\xb5de\\n","stream":"stdout","time":"2026"}',
    ],
)
def test_line_that_is_not_an_object_stays_as_it_is(line: bytes) -> None:
    whole = b'{"log":"step 1\\n","stream":"stdout","time":"2026"}'

    assert unwrapped_lines(whole + b"\n" + line) == b"step 1\n" + line
