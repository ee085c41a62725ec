"""The mounts of the directories for checkpoints, data and downloads: file system, options, measured speed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import MountedFilesystem, System, existing_parent, path_exists
from ascendtune.check.finding import Finding, ok, unknown, warning
from ascendtune.core.units import format_bytes
from ascendtune.hub.download import split_hub

STORAGE = "storage"

_SLOW_BYTES_PER_SECOND = 50e6
_CHECKPOINT_BYTES = 84e9
"""A full checkpoint of a 7B model: fp32 weights and both moments of AdamW."""
_SMALL_TRANSFER_BYTES = 64 << 10
_ROOM_BYTES = 1 << 30
"""No test file is written to a file system with less free space."""
_SHOWN_OPTIONS = ("vers", "proto", "rsize", "wsize", "hard", "soft", "sync", "noac", "nolock", "timeo", "ro")


@dataclass(frozen=True)
class _Directory:
    """A directory that a job reads or writes."""

    name: str
    """The kind of its content: checkpoints, data or downloads; or just a directory."""
    path: Path
    written: bool


def _look(system: System) -> Iterator[Finding]:
    return _findings(system, _places(system))


def storage_of(system: System, directories: Iterable[Path]) -> Iterator[Finding]:
    """Findings for the given directories, with measurements; the check itself uses those of a job."""
    places = [_Directory(say("directory"), path, written=True) for path in directories]
    return _findings(system, places, are_given=True)


def _findings(system: System, places: Iterable[_Directory], *, are_given: bool = False) -> Iterator[Finding]:
    mounts, found = dict[str, bool](), []
    measured: dict[tuple[str, int], tuple[float, float] | None] = {}
    for place in places:
        existing = existing_parent(place.path)
        mount = system.mount(existing)
        found += [*_options(place, mount), *_read_only(place, mount)]
        key = (mount.point, existing.stat().st_dev)
        if key not in measured:
            measured[key] = _speed(system, existing)
        speed = measured[key]
        # Model and data sets are often on one mount: one line for both.
        mounts[_described(f"{place.name} {place.path}" if are_given else place.name, mount, speed)] = speed is not None
        if speed is not None:
            found += _slow(place, existing, mount, *speed)
    yield from dict.fromkeys(found)
    if are_given or not found:
        yield ok(STORAGE, say("; ").join(mounts))
    elif unmeasured := [line for line, is_measured in mounts.items() if not is_measured]:
        yield unknown(STORAGE, say("; ").join(unmeasured))


def _places(system: System) -> list[_Directory]:
    needs = system.needs
    run_dir = system.cwd / needs.run_dir if needs else system.cwd
    places = [_Directory(say("checkpoints"), run_dir, written=True)]
    for text in (needs.model, *needs.data) if needs else ():
        path = Path(text).expanduser()
        if split_hub(text)[0] is None and path_exists(path):
            places.append(_Directory(say("data"), path if path.is_dir() else path.parent, written=False))
    if system.hub_cache is not None:
        places.append(_Directory(say("downloads"), system.hub_cache, written=True))
    return places


def _speed(system: System, directory: Path) -> tuple[float, float] | None:
    try:
        return system.file_speed(directory) if system.space(directory)[0] > _ROOM_BYTES else None
    except OSError:
        return None


def _described(name: str, mount: MountedFilesystem, speed: tuple[float, float] | None) -> str:
    options = [each for each in mount.options if each.partition("=")[0] in _SHOWN_OPTIONS] if mount.is_remote else []
    kind = (mount.kind or say("unknown file system")) + (f" ({','.join(options)})" if options else "")
    if speed is None:
        return say("{name} on {kind}: not measured", name=name, kind=kind)
    write, read = (f"{format_bytes(each)}/s" for each in speed)
    return say("{name} on {kind}: writes {write}, reads {read}", name=name, kind=kind, write=write, read=read)


def _options(place: _Directory, mount: MountedFilesystem) -> Iterator[Finding]:
    """Options of a network file system that lose data or make it slow."""
    if not mount.is_nfs:
        return
    given = dict(each.partition("=")[::2] for each in mount.options)
    if "soft" in given and place.written:
        yield _mounted(
            place, mount, "soft", say("a time-out of the server loses writes without an error in time"), "hard"
        )
    if given.get("proto") == "udp" or "udp" in given:
        yield _mounted(place, mount, "udp", say("large writes are damaged or repeated under load"), "proto=tcp")
    if "sync" in given or "noac" in given:
        name = "sync" if "sync" in given else "noac"
        yield _mounted(place, mount, name, say("every write waits for the server"), "async,ac")
    small = [name for name in ("rsize", "wsize") if given.get(name, "").isdecimal()]
    small = [name for name in small if int(given[name]) < _SMALL_TRANSFER_BYTES]
    if small:
        options = ",".join(f"{name}={given[name]}" for name in small)
        yield _mounted(place, mount, options, say("small transfers make it slow"), "rsize=1048576,wsize=1048576")


def _mounted(place: _Directory, mount: MountedFilesystem, options: str, why: str, better: str) -> Finding:
    return warning(
        STORAGE,
        say("{where} is mounted with {options}: {why}", where=f"{place.name} {mount.point}", options=options, why=why),
        expected=better,
        remedy=say(
            "sudo mount -o remount,{better} {point}, or in /etc/fstab", better=better, point=shlex.quote(mount.point)
        ),
    )


def _read_only(place: _Directory, mount: MountedFilesystem) -> Iterator[Finding]:
    if place.written and "ro" in mount.options:
        yield warning(
            STORAGE,
            say("{name} {path} is on a file system that is mounted read-only", name=place.name, path=place.path),
            expected="rw",
            remedy=say(
                "sudo mount -o remount,rw {point}; after an error of the disk look at dmesg",
                point=shlex.quote(mount.point),
            ),
        )


def _slow(place: _Directory, existing: Path, mount: MountedFilesystem, write: float, read: float) -> Iterator[Finding]:
    name = place.name
    if place.written and write < _SLOW_BYTES_PER_SECOND:
        minutes = _CHECKPOINT_BYTES / write / 60
        yield warning(
            STORAGE,
            say(
                "{name} {path} ({kind}) writes {speed}/s",
                name=name,
                path=existing,
                kind=mount.kind,
                speed=format_bytes(write),
            ),
            expected=say(
                "{speed}/s or more; a full checkpoint of a 7B model takes {minutes:.0f} minutes here",
                speed=format_bytes(_SLOW_BYTES_PER_SECOND),
                minutes=minutes,
            ),
            remedy=say("put run_dir on a local disk or a faster mount, and write checkpoints less often"),
        )
    if read < _SLOW_BYTES_PER_SECOND:
        yield warning(
            STORAGE,
            say(
                "{name} {path} ({kind}) reads {speed}/s",
                name=name,
                path=existing,
                kind=mount.kind,
                speed=format_bytes(read),
            ),
            expected=say("{speed}/s or more", speed=format_bytes(_SLOW_BYTES_PER_SECOND)),
            remedy=say("copy model and data to a local disk before training"),
        )


STORAGE_CHECK = Check(
    STORAGE,
    what="Reads protocol and options of the mounts (NFS, DPC and others) below checkpoints, data and downloads, and "
    "measures them: it writes a temporary file of at most 32 MiB with fsync and reads it back, at most one second for "
    "each. With `ascendtune doctor RECIPE` the places are those of the recipe.",
    why="Eight ranks wait while rank 0 writes a checkpoint: on a slow share minutes become hours. An NFS mounted with "
    "`soft` loses writes when the server is late; `sync`, `noac` or small rsize and wsize make it slow.",
    fix="Copy model and data to a local disk; mount shares with hard, proto=tcp and rsize, wsize of 1048576 (DPC: as "
    "its vendor says); keep checkpoints on the faster place. A read may measure the server's cache.",
    look=_look,
)
