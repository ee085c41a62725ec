"""`ascendtune fetch` killed at points of its way and started again: files are right, hardly a byte came twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.hub.snapshot import transfer
from ascendtune.hub.snapshot.hub_client import HubClient, HuggingFace, ModelScope
from hub_server import Hub, serving

pytestmark = pytest.mark.usefixtures("preloaded")

_FILES = {
    "config.json": b'{"model_type": "qwen2"}',
    "model-00001.safetensors": random.Random(1).randbytes(3_000_000),
    "model-00002.safetensors": random.Random(2).randbytes(1_500_000),
}
_KILLS = 20
"""Of each protocol."""
_CHUNK = 1 << 18
"""What the client reads at most before it writes."""
_PIECE = 10_000
_PATIENCE_SECONDS = 15.0
"""A client that writes nothing for so long fails the test."""


@pytest.mark.parametrize("protocol", [HuggingFace, ModelScope])
@pytest.mark.parametrize("kills", [_KILLS, pytest.param(100, marks=pytest.mark.soak)])
def test_killed_at_any_point_no_byte_comes_twice_beyond_a_chunk(
    kills: int, protocol: Callable[[str], HubClient], tmp_path: Path
) -> None:
    size, directory = sum(map(len, _FILES.values())), tmp_path / "m"
    with serving(Hub(_FILES, frozenset(_FILES), chunk=_PIECE)) as hub:
        source = protocol(hub.endpoint)
        parts = {
            each.path: transfer.part_of(directory, each) for each in source.listing("o/m", "model", None).files
        }  # fmt: skip
        command = [sys.executable, "-m", "ascendtune", "fetch", "model", "o/m", "--to", str(directory), "--quiet"]
        command += ["--from", "modelscope" if isinstance(source, ModelScope) else hub.endpoint]
        env = {**os.environ, "HOME": str(tmp_path), "MODELSCOPE_ENDPOINT": hub.endpoint}
        processes: list[subprocess.Popen[bytes]] = []
        wasted, stuck = dict.fromkeys(_FILES, 0), list[str]()

        def not_on_disk(name: str) -> int:
            """Bytes that left the server since the last kill, and are not on the disk."""
            return hub.sent.get(name, 0) - wasted[name] - _size_of(parts[name], directory / name)

        def wait_for_the_disk(name: str) -> None:
            """The kernel's buffers would take megabytes that a killed client never reads."""
            process, deadline = processes[-1], time.monotonic() + _PATIENCE_SECONDS
            while not_on_disk(name) + _PIECE > _CHUNK and not stuck:
                if process.poll() is not None:
                    raise ConnectionError
                if time.monotonic() > deadline:
                    stuck.append(f"{name}: {not_on_disk(name)} bytes were sent and are not on the disk")
                time.sleep(0.001)

        hub.before_piece = wait_for_the_disk
        for number in range(kills):
            # The first dies before a byte has come, the last while the last bytes come.
            asked, enough = len(hub.tokens), number * size // kills
            process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            processes.append(process)
            while len(hub.tokens) == asked or sum(hub.sent.values()) - sum(wasted.values()) < enough:
                assert not stuck
                assert process.poll() is None, process.communicate()[1].decode()
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            _wait_until_still(hub)
            for name in _FILES:
                again = not_on_disk(name)
                assert again <= _CHUNK, f"{name}: {again} bytes were sent and are not on the disk"
                wasted[name] += again
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
        _, told = processes[-1].communicate(timeout=300)
        assert processes[-1].returncode == 0, told.decode()
        assert hub.sent == {name: len(content) + wasted[name] for name, content in _FILES.items()}
    assert {name: (directory / name).read_bytes() for name in _FILES} == _FILES
    assert not list((directory / transfer.STATE).glob("*.part"))


def _size_of(part: Path, target: Path) -> int:
    for path in (target, part, target):
        # The part may become the target between two looks.
        if path.exists():
            return path.stat().st_size
    return 0


def _wait_until_still(hub: Hub) -> None:
    """Until the server has noticed that nobody reads any more."""
    before = -1
    while before != (before := sum(hub.sent.values())):
        time.sleep(0.05)
