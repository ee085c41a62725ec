"""A training for an external engine: the input of all engines."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascendtune.core.directories import WRITTEN_BY
from ascendtune.core.errors import InputError
from ascendtune.core.units import count_of
from ascendtune.machine.vendor.base import ContainerNeeds, Vendor
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.machine.visible import Kind

HEADER = f"{WRITTEN_BY} submit`"
"""First words of a generated file, which may be replaced without a question."""

_NEVER = re.compile(r"[\0\ud800-\udfff]")
"""Characters that cannot be written: an argument has no NUL, and surrogates stand for bytes that are not UTF-8."""

_CONTROL = re.compile(r"[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that end a line, or move the cursor, and are refused in a path or an option."""

MASTER_PORT = 29500
"""Port of node 0 if the engine does not set one."""

GRACE_SECONDS = 600
"""Time for a stopped training to write its checkpoint before it is killed."""

SHARED_MEMORY_GIB = 16
"""Limit of /dev/shm; the default of Docker and Kubernetes, 64 MB, ends NCCL and Gloo. Only used memory counts."""


@dataclass(frozen=True)
class ContainerMount:
    """A path of the host, mounted at the same path inside."""

    path: Path
    writable: bool = False


@dataclass(frozen=True)
class Submission:
    """One command, run once on every node. Empty fields mean the engine's defaults."""

    name: str
    """Name of the job: lower-case letters, digits, '-'."""
    argv: tuple[str, ...]
    directory: Path
    """The working directory."""
    kind: Kind
    device_ids: tuple[str, ...]
    """Devices of each node; the names matter only if the engine is this machine's own."""
    nodes: int = 1
    mounts: tuple[ContainerMount, ...] = ()
    inherited: tuple[str, ...] = ()
    """Names of variables whose values the engine takes from elsewhere: the shell, a Kubernetes secret."""
    variables: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    hours: float | None = None
    partition: str | None = None
    sbatch: tuple[str, ...] = ()
    """Further options for sbatch, unchanged."""
    namespace: str | None = None
    secret: str = "ascendtune"
    """The Kubernetes secret that contains `inherited`."""
    volumes: Mapping[Path, str] = field(default_factory=dict)
    """Kubernetes: mount point -> the claim that is mounted there."""
    recipe: Path | None = None
    """Kubernetes: a file that is submitted with the job."""

    def __post_init__(self) -> None:
        """Refuse text that cannot be written to an engine's file.

        Raises:
            InputError: a control character in a path or an option, bytes that are not UTF-8 anywhere.
        """
        paths = [self.directory, *(mount.path for mount in self.mounts), *self.volumes]
        paths += [] if self.recipe is None else [self.recipe]
        for text in (*map(str, paths), *self.sbatch, self.partition or ""):
            require_text(text, _CONTROL)
        for text in (*self.argv, *self.variables.values()):
            require_text(text, _NEVER)

    @property
    def devices(self) -> int:
        """Devices of each node."""
        return len(self.device_ids)

    @property
    def vendor(self) -> Vendor:
        return vendor_of(self.kind)

    @property
    def needs(self) -> ContainerNeeds:
        return self.vendor.container

    @property
    def values(self) -> dict[str, Any]:
        """The values that templates of several engines use."""
        return {
            "header": HEADER,
            "places": self.places,
            "name": self.name,
            "image": self.image,
            "directory": str(self.directory),
            "nodes": self.nodes,
            "several_nodes": self.nodes > 1,
            "devices": str(self.devices),
            "grace_seconds": GRACE_SECONDS,
            "shared_memory_gib": SHARED_MEMORY_GIB,
            "master_port": MASTER_PORT,
        }

    @property
    def places(self) -> str:
        """ "2 nodes × 8 NPU"."""
        devices = count_of(self.devices, self.vendor.noun, self.vendor.plural)
        return f"{self.nodes} nodes × {devices}" if self.nodes > 1 else devices


def require_text(text: str, refused: re.Pattern[str]) -> None:
    """Raise if `text` has a character that an engine's file must not contain.

    Raises:
        InputError: it contains one.
    """
    if found := refused.search(text):
        raise InputError(
            f"{text!r} has the character {found[0]!r}, which a file for an engine cannot have here",
            code="invalid-character",
            remedy="rename the path, or write the value without it",
        )


def job_name(recipe_name: str) -> str:
    """A name that Docker, Slurm and Kubernetes all accept (RFC 1123), short enough for their suffixes.

    If it lacks a part of the recipe's name, it ends with a digest of that name: equal names would replace each other's
    job.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", recipe_name.lower()).strip("-")
    if len(plain) > 40 or not recipe_name.isascii():
        digest = hashlib.sha256(recipe_name.encode(errors="surrogateescape")).hexdigest()[:8]
        plain = f"{plain[:31]}-{digest}".replace("--", "-").strip("-")
    return f"ascendtune-{plain or 'run'}"


def in_container(submission: Submission, exports: Mapping[str, str]) -> list[str]:
    """The command for a container; the image's entry point is kept, because it may set up CANN.

    Args:
        exports: variable -> its value, as a shell reads it between double quotes.
    """
    lines = [*submission.needs.set_up, *(f'export {name}="{value}"' for name, value in exports.items())]
    if not lines:
        return list(submission.argv)
    return ["bash", "-c", "\n".join([*lines, f"exec {shlex.join(submission.argv)}"])]
