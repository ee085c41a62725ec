"""Messages of hosts of which another program, or a stranger, wrote any field."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import CheckFailed, MachineError, error_to_json
from ascendtune.core.exit_cause import exit_cause
from ascendtune.job.nodes import connection
from ascendtune.job.nodes.answers import checked
from ascendtune.job.nodes.cluster_spec import TargetHost
from ascendtune.job.nodes.connection import Inbox, RemoteNode
from ascendtune.job.nodes.handshake_reply import describe_host
from ascendtune.job.nodes.log_streams import LogSource, message_of
from ascendtune.job.nodes.screen import Screen

_ERROR = MachineError("no such directory", code="test", remedy="create it", where="/data")
_HANG = {**exit_cause("hang", CheckFailed("rank 1 hangs", code="run-hung", remedy="restart")), "odd_ranks": [1]}
_ODD = (None, True, -1, 9, 1e300, 10**400, "", "x", "\x1b[2J", "-evil", "x" * 100_000, [], [1], ["a"], {}, {"a": 1})


def _messages(directory: Path) -> list[dict[str, Any]]:
    """What an agent sends."""
    job = {"directory": str(directory), "env": {}, "token": None, "node": 0}
    return [
        {"hello": describe_host(job)},
        {"refused": error_to_json(_ERROR)},
        {"endpoint": {"address": "10.0.0.1", "port": 29500}},
        {"endpoint": {"address": "fe80::1%eth0", "port": 29500}},
        message_of(LogSource(0, "out"), "loss\n"),
        message_of(LogSource(0, "err"), "step\n"),
        message_of(LogSource(3, "line"), "of rank 3"),
        message_of(LogSource(0, "out"), 12),
        {"asked": 2},
        {"asked": 15},
        {"ended": 0, "hang": None},
        {"ended": -9, "hang": _HANG},
    ]


def test_all_that_an_agent_sends_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for message in _messages(tmp_path):
        assert (checked(json.loads(json.dumps(message)), "node1") or {}).items() <= message.items()
    assert checked({"alive": True}, "node1") is None
    assert checked({"text": "of a login shell"}, "node1") is None


@pytest.mark.parametrize(
    "message",
    [
        *({"asked": number} for number in (9, 19, 1000, 2.0, "2", True)),
        *({"ended": code, "hang": None} for code in (None, "1", 1e3, -400, 256)),
        *({"ended": 1, "hang": hang} for hang in ("x", {}, {**_HANG, "odd_ranks": "x"}, {**_HANG, "exit_code": "1"})),
        *({"endpoint": {"address": address, "port": 1}} for address in ("-x", "a b", "a\n", "", None, [1])),
        *({"endpoint": {"address": "a", "port": port}} for port in (0, 65536, "1", None)),
        *({"line": "a"}, {"line": "a", "rank": "../x"}, {"out": 5}, {"left_out": 1e9}, {"refused": {"what": "a"}}),
    ],
    ids=str,
)
def test_invalid_field_is_an_error_of_that_host(message: dict[str, Any]) -> None:
    with pytest.raises(MachineError) as refused:
        checked(message, "node1")
    assert (refused.value.code, refused.value.where) == ("host-of-other-version", "node1")


def test_description_with_a_drawn_odd_value_is_refused_or_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw, hello = random.Random(7), _messages(tmp_path)[0]["hello"]
    for name in hello:
        for odd in _ODD:
            content = {**hello, name: odd}
            content.pop(draw.choice(list(hello)), None) if draw.random() < 0.1 else None
            try:
                answer = checked({"hello": content}, "node1")
            except MachineError:
                continue
            assert answer is not None
            used = answer["hello"]
            assert 1 <= used["devices"] <= 1024 and 0 <= used["time"] < 1e12 and isinstance(used["versions"], Mapping)


def _ended(monkeypatch: pytest.MonkeyPatch, *lines: str) -> tuple[list[Any], MachineError]:
    """The messages that arrive from a program with this output, and why it ended."""
    program = f"import time\nfor line in {lines!r}: print(line, flush=True)\ntime.sleep(60)"
    monkeypatch.setattr(connection, "module_on", lambda *_: [sys.executable, "-S", "-c", program])
    inbox = Inbox()
    node = RemoteNode(TargetHost("node1"), inbox)
    try:
        received = []
        while (message := inbox.get(timeout=60).message) is not None:
            received.append(message)
        return received, node.why_ended()
    finally:
        node.end(0)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_host_that_sends_faster_than_is_read_waits(
    stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages would fill the memory of the starting host; the agent there drops lines."""
    sent = tmp_path / "sent"
    program = (
        "import sys\n"
        "for number in range(10**6):\n"
        f"    print('{{\"out\": \"' + 'x' * 60_000 + '\"}}', file=sys.{stream}, flush=True)\n"
        f"    open({str(sent)!r}, 'a').write('x')"
    )
    monkeypatch.setattr(connection, "module_on", lambda *_: [sys.executable, "-S", "-c", program])
    inbox = Inbox()
    node = RemoteNode(TargetHost("node1"), inbox)
    try:
        while not inbox.full():
            time.sleep(0.05)
        time.sleep(1)
        # Those in the inbox, and a few in the pipe and in the thread that waits.
        assert sent.stat().st_size < inbox.maxsize + 10
    finally:
        began = time.monotonic()
        node.end(0)
    assert time.monotonic() - began < 30


def test_nothing_is_read_after_an_invalid_message(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    lines = ("Welcome!", '{"out": "a"}', '{"unknown": 1}', '{"asked": 9}', '{"out": "b"}')
    received, error = _ended(monkeypatch, *lines)
    assert received == [{"out": "a"}] and error.code == "host-of-other-version"
    assert time.monotonic() - began < 30


def test_drawn_messages_are_shown_or_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    draw, shown = random.Random(11), Screen(tmp_path, is_foreign=False)
    for _ in range(500):
        message = {draw.choice(("out", "err", "line", "left_out", "rank")): draw.choice(_ODD) for _ in range(2)}
        try:
            answer = checked(message, "node1")
        except MachineError:
            continue
        shown.show("node1", answer or {})
    shown.finish(was_asked_to_stop=False)
    out, err = capfd.readouterr()
    assert "x" in out + err and "\x1b" not in out + err
