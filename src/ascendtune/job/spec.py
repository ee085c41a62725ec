"""What is to be started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ascendtune.machine.visible import Kind


@dataclass(frozen=True)
class JobSpec:
    """One program, once per device."""

    argv: tuple[str, ...]
    """The program of one rank; it learns its place from torchrun's variables (RANK, WORLD_SIZE, …)."""
    run_dir: Path
    """Where launcher.log, the ranks' logs and the cause of a failure are found."""
    nproc: int
    kind: Kind
    device_ids: tuple[str, ...] | None = None
    """Names for the visibility variable of `kind`; None leaves what the user has set."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What the program is told by its environment, whatever the user has set."""
