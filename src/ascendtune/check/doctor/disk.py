"""Free space and kind of the file systems of the working directory, the downloads and the cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok, warning
from ascendtune.core.units import format_bytes

DISK = "disk"

_ENOUGH_BYTES = 20 << 30
"""A 7B model in bf16 and its final weights, without optimizer checkpoints."""
_ELSEWHERE = {
    "working directory": "cd to another disk",
    "cache": "export XDG_CACHE_HOME=<a directory on a local disk>",
    "download directory": "export HF_HOME=<a directory on another disk>",
}
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "dpc", "lustre", "ceph", "beegfs", "gpfs", "9p")


def _look(outside: Outside) -> Iterator[Finding]:
    places = {"working directory": outside.cwd, "cache": outside.cache} | _downloads(outside)
    told: list[str] = []
    found: list[Finding] = []
    for name, path in places.items():
        there = _existing(path)
        free, _ = outside.space(there)
        kind, options = _file_system(there, outside.text("/proc/self/mountinfo"))
        told.append(f"{name} {format_bytes(free)} free on {kind or 'an unknown file system'}")
        found += _room(name, there, free)
        found += _speed(name, there, kind, options)
    yield from found
    if not found:
        yield ok(DISK, "; ".join(told))


def _downloads(outside: Outside) -> dict[str, Path]:
    """The download directory of huggingface_hub, by its variables."""
    env = outside.env
    caches = env.get("XDG_CACHE_HOME") or (f"{env['HOME']}/.cache" if env.get("HOME") else None)
    home = env.get("HF_HOME") or (f"{caches}/huggingface" if caches else None)
    place = env.get("HF_HUB_CACHE") or (f"{home}/hub" if home else None)
    return {"download directory": Path(place)} if place else {}


def _room(name: str, path: Path, free: int) -> Iterator[Finding]:
    if not os.access(path, os.W_OK):
        yield warning(
            DISK,
            say("the {name} {path} is not writable", name=name, path=path),
            expected=say("a writable directory"),
            remedy=_ELSEWHERE[name],
        )
    elif free < _ENOUGH_BYTES:
        yield warning(
            DISK,
            say("the {name} {path} has {free} free", name=name, path=path, free=format_bytes(free)),
            expected=say("{enough_bytes} for a 7B model and its results", enough_bytes=format_bytes(_ENOUGH_BYTES)),
            remedy=say("free space, or {elsewhere}", elsewhere=_ELSEWHERE[name]),
        )


def _speed(name: str, path: Path, kind: str | None, options: str) -> Iterator[Finding]:
    if kind is None or not (kind in _REMOTE or kind.startswith("fuse.")):
        return
    if name == "cache":
        yield warning(
            DISK,
            say("the cache {path} is on {kind}", path=path, kind=kind),
            expected=say("a local disk: every rank maps the tokens into memory"),
            remedy=say("export XDG_CACHE_HOME=<a directory on a local disk>"),
        )
    elif kind.startswith("nfs") and "vers=3" in options and "nolock" in options.split(","):
        yield warning(
            DISK,
            say(
                "the {name} {path} is on NFS 3 mounted with nolock: file locks do not work across machines",
                name=name,
                path=path,
            ),
            expected=say("NFS 4, or NFS 3 with locks, for directories shared by several machines"),
            remedy=say("mount it with vers=4.1"),
        )


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _file_system(path: Path, mounts: str) -> tuple[str | None, str]:
    """Kind and options of the mount of `path`: the longest mount point, and of these the last one mounted."""
    best: tuple[int, str | None, str] = (-1, None, "")
    for line in mounts.splitlines():
        left, dash, right = line.partition(" - ")
        fields, rest = left.split(), right.split()
        if not dash or len(fields) < 6 or len(rest) < 3:
            continue
        point = fields[4].replace("\\040", " ")
        if path.is_relative_to(point) and len(point) >= best[0]:
            best = (len(point), rest[0], f"{fields[5]},{rest[2]}")
    return best[1], best[2]


DISK_CHECK = Check(
    DISK,
    what="Checks free space and kind of the file systems of the working directory (for runs), the download directory "
    "(for models), and the cache (for tokens).",
    why="A full disk stops a run in the middle of a checkpoint. Every rank maps token files into memory, which is slow "
    "over a network file system, and file locks may not work there.",
    fix="Free space or choose another disk. Put the cache on a local disk with XDG_CACHE_HOME; run directories of jobs "
    "on several machines belong on a shared file system with working locks (NFS 4).",
    look=_look,
)
