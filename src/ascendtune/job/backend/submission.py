"""A training for an external engine: what all engines are given."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascendtune.core.errors import InputError
from ascendtune.core.units import count_of
from ascendtune.machine.vendor.base import ContainerNeeds, Vendor
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.machine.visible import Kind

HEADER = "Written by `ascendtune submit`"
"""The beginning of a file that may be replaced without asking."""

_NEVER = re.compile(r"[\0\ud800-\udfff]")
"""No argument has a NUL; bytes of a file name that are not UTF-8 are surrogates in Python, and cannot be written."""

_CONTROL = re.compile(r"[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""What ends a line, or moves the cursor, in a path or an option."""

MASTER_PORT = 29500
"""Where node 0 is met when the engine does not say."""

GRACE_SECONDS = 600
"""How long a stopped training may take for its checkpoint before it is killed."""

SHARED_MEMORY_GIB = 16
"""Limit of /dev/shm; Docker's and Kubernetes' own 64 MB end NCCL and Gloo. Only what is used is taken."""


@dataclass(frozen=True)
class ContainerMount:
    """A path of the host, at the same place inside."""

    path: Path
    writable: bool = False


@dataclass(frozen=True)
class Submission:
    """One command, once on every node. Where a field is empty, the engine's default holds."""

    name: str
    """Of the job: lower-case letters, digits, '-'."""
    argv: tuple[str, ...]
    directory: Path
    """The working directory."""
    kind: Kind
    device_ids: tuple[str, ...]
    """Of each node; their names count only where the engine is this machine's own."""
    nodes: int = 1
    mounts: tuple[ContainerMount, ...] = ()
    inherited: tuple[str, ...] = ()
    """Names of variables whose values the engine takes from elsewhere: the shell, a Kubernetes secret."""
    variables: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    hours: float | None = None
    partition: str | None = None
    sbatch: tuple[str, ...] = ()
    """Further options for sbatch, as it takes them."""
    namespace: str | None = None
    secret: str = "ascendtune"
    """The Kubernetes secret that holds `inherited`."""
    volumes: Mapping[Path, str] = field(default_factory=dict)
    """Kubernetes: a place, and the claim that is mounted there."""
    recipe: Path | None = None
    """Kubernetes: a file that travels with the job."""

    def __post_init__(self) -> None:
        """Refuse what no file for an engine can hold.

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
        """What the templates of several engines name."""
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
        here = count_of(self.devices, self.vendor.noun, self.vendor.plural)
        return f"{self.nodes} nodes × {here}" if self.nodes > 1 else here


def require_text(text: str, refused: re.Pattern[str]) -> None:
    """Raise where `text` has a character that a file for an engine must not have.

    Raises:
        InputError: it has one.
    """
    if found := refused.search(text):
        raise InputError(
            f"{text!r} has the character {found[0]!r}, which a file for an engine cannot have here",
            code="invalid-character",
            remedy="rename the path, or write the value without it",
        )


def job_name(recipe_name: str) -> str:
    """A name that Docker, Slurm and Kubernetes all accept (RFC 1123), with room for what they append.

    Where it lacks a part of the recipe's name, a digest of that follows: a job would replace another of the same name.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", recipe_name.lower()).strip("-")
    if len(plain) > 40 or not recipe_name.isascii():
        digest = hashlib.sha256(recipe_name.encode(errors="surrogateescape")).hexdigest()[:8]
        plain = f"{plain[:31]}-{digest}".replace("--", "-").strip("-")
    return f"ascendtune-{plain or 'run'}"


def in_container(submission: Submission, exports: Mapping[str, str]) -> list[str]:
    """What a container runs; the image's entry point is kept, which may set up CANN.

    Args:
        exports: variable -> what it is, as a shell reads it between double quotes.
    """
    lines = [*submission.needs.set_up, *(f'export {name}="{value}"' for name, value in exports.items())]
    if not lines:
        return list(submission.argv)
    return ["bash", "-c", "\n".join([*lines, f"exec {shlex.join(submission.argv)}"])]
