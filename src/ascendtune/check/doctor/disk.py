"""Free space and kind of the file systems of the working directory, the downloads and the cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import MountedFilesystem, System, existing_parent
from ascendtune.check.finding import Finding, ok, warning
from ascendtune.core.units import format_bytes

DISK = "disk"

_ENOUGH_BYTES = 20 << 30
"""A 7B model in bf16 and its final weights, without optimizer checkpoints."""
_LEAST_BYTES = 1 << 30
"""With less, logs and metrics of a run fill the file system before its first checkpoint."""
_ELSEWHERE = {
    "working directory": "cd to another disk",
    "cache": "export XDG_CACHE_HOME=<a directory on a local disk>",
    "download directory": "export HF_HOME=<a directory on another disk>",
}


def _look(system: System) -> Iterator[Finding]:
    places = {"working directory": system.cwd, "cache": system.cache}
    if system.hub_cache is not None:
        places["download directory"] = system.hub_cache
    measured: list[str] = []
    found: list[Finding] = []
    for name, path in places.items():
        existing = existing_parent(path)
        free, _ = system.space(existing)
        mount = system.mount(existing)
        kind = mount.kind or say("an unknown file system")
        measured.append(say("{name} {free} free on {kind}", name=say(name), free=format_bytes(free), kind=kind))
        found += _room(name, existing, free)
        found += _kind(name, existing, mount)
    yield from found
    if not found:
        yield ok(DISK, say("; ").join(measured))


def _room(name: str, path: Path, free: int) -> Iterator[Finding]:
    if not os.access(path, os.W_OK):
        yield warning(
            DISK,
            say("the {name} {path} is not writable", name=say(name), path=path),
            expected=say("a writable directory"),
            remedy=say(_ELSEWHERE[name]),
        )
    elif free < _ENOUGH_BYTES:
        yield Finding(
            DISK,
            "failure" if free < _LEAST_BYTES else "warning",
            say("the {name} {path} has {free} free", name=say(name), path=path, free=format_bytes(free)),
            expected=say("{enough_bytes} for a 7B model and its results", enough_bytes=format_bytes(_ENOUGH_BYTES)),
            remedy=say("free space, or {elsewhere}", elsewhere=say(_ELSEWHERE[name])),
        )


def _kind(name: str, path: Path, mount: MountedFilesystem) -> Iterator[Finding]:
    if not mount.is_remote:
        return
    if name == "cache":
        yield warning(
            DISK,
            say("the cache {path} is on {kind}", path=path, kind=mount.kind),
            expected=say("a local disk: every rank maps the tokens into memory"),
            remedy=say("export XDG_CACHE_HOME=<a directory on a local disk>"),
        )
    elif mount.is_nfs and {"vers=3", "nolock"} <= set(mount.options):
        yield warning(
            DISK,
            say(
                "the {name} {path} is on NFS 3 mounted with nolock: file locks do not work across machines",
                name=say(name),
                path=path,
            ),
            expected=say("NFS 4, or NFS 3 with locks, for directories shared by several machines"),
            remedy=say("mount it with vers=4.1"),
        )


DISK_CHECK = Check(
    DISK,
    what="Checks free space and kind of the file systems of the working directory (for runs), the download directory "
    "(for models), and the cache (for tokenised data).",
    why="A full disk stops a run in the middle of a checkpoint. Every rank maps token files into memory, which is slow "
    "over a network file system, and file locks may not work there.",
    fix="Free space or choose another disk. Put the cache on a local disk with XDG_CACHE_HOME; run directories of jobs "
    "on several machines belong on a shared file system with working locks (NFS 4).",
    look=_look,
)
