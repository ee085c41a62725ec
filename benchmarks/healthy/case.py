"""What a case is: a command, its surroundings, and how it is stopped."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Place:
    directory: Path
    model: Path
    alpaca: Path
    rows: Path
    logs: Path


@dataclass(frozen=True)
class Case:
    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    """An empty value takes the variable away."""
    terminal: bool = False
    interrupt_at: Path | None = None
    """It is stopped when this file has something in it,"""
    after: float = 0
    """so many seconds later,"""
    by: signal.Signals = signal.SIGINT
    """by this signal; SIGINT is Ctrl-C."""
    also: tuple[str, ...] = ()
    """Patterns of further logs, from the directory on."""


Chain = list[Case]
