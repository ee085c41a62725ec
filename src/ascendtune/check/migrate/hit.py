"""One place where a rule applies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hit:
    code: str
    line: int
    text: str
    """What stands there, one line."""
    is_optional: bool = False
    """An import whose failure is caught: the code runs without it."""
