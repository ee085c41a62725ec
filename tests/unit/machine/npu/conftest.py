"""Transcripts, and what someone who read them by eye says that they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_TESTS = Path(__file__).parents[3]
TRANSCRIPTS = _TESTS / "fixtures" / "ascend"
GOLDEN = _TESTS / "golden" / "devices"


@dataclass(frozen=True)
class Read:
    """A transcript and its expected JSON; `lines` are the lines of each device, from 1."""

    text: str
    expected: dict[str, Any]
    lines: list[list[int]]


def load(golden: Path, transcripts: Path) -> Read:
    expected = json.loads(golden.read_text())
    lines = [device.pop("lines") for device in expected["devices"]]
    return Read((transcripts / f"{golden.stem}.txt").read_bytes().decode(), expected, lines)


@pytest.fixture
def transcript() -> Callable[[str], str]:
    """The text of a committed transcript, by its name."""
    return lambda name: (TRANSCRIPTS / f"{name}.txt").read_bytes().decode()


@pytest.fixture(params=sorted(path.stem for path in GOLDEN.glob("*.json")))
def read(request: pytest.FixtureRequest) -> Read:
    """Each committed transcript of `npu-smi info`."""
    return load(GOLDEN / f"{request.param}.json", TRANSCRIPTS)


@pytest.fixture(params=sorted(path.stem for path in (GOLDEN / "shared").glob("*.json")))
def read_shared(request: pytest.FixtureRequest, shared: Path) -> Read:
    """Each whole transcript of `npu-smi info` in the shared material."""
    return load(GOLDEN / "shared" / f"{request.param}.json", shared / "fixtures" / "ascend")
