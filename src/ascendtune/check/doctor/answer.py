"""What a program that computes for `--deep` has said: one line of JSON, or why it did not come to that."""

from __future__ import annotations

import json
from typing import Any

from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, unknown
from ascendtune.core.process import Finished

SECONDS = 150.0
"""The first operators of an NPU may be compiled; the import of torch_npu alone takes many seconds on a slow disk."""


def why_not_asked(outside: Outside, code: str) -> Finding | None:
    """The finding where torch has nothing here to compute on, so that no program is started."""
    if outside.package("torch") is None:
        return unknown(code, "torch is not installed", remedy="pip install 'ascendtune[train]'")
    if not outside.visible.ids:
        return unknown(code, "no device is visible", remedy="see the finding visible_devices")
    return None


def answer(done: Finished) -> dict[str, Any] | None:
    """The last line, of a program that ended well; torch and its plugins print above it."""
    if done.exit_code != 0:
        return None
    try:
        told = json.loads(done.output.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def no_answer(code: str, who: str, done: Finished, *, expected: str, remedy: str) -> Finding:
    """The failure of a program that gave none: how it ended, and its last words."""
    how = done.error.strip().splitlines()[-1:] or ["no message"]
    ended = "gave no answer" if done.timed_out else f"ended with {_exit(done.exit_code)}"
    return Finding(
        code,
        "failure",
        f"{who} {ended}: {how[0][:200]}",
        expected=expected,
        remedy=remedy,
        evidence=tuple(done.error.strip().splitlines()[-6:]),
    )


def _exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
