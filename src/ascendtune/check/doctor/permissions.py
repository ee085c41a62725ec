"""Checks whether this user may read and write the files of a job: CANN, the Python environment, data, caches."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import System, existing_parent, path_exists
from ascendtune.check.finding import Finding, failure, ok, warning

PERMISSIONS = "permissions"

_VENDOR = (
    "/usr/local/Ascend",
    "/usr/local/Ascend/driver",
    "/usr/local/Ascend/ascend-toolkit",
    "/usr/local/Ascend/cann",
    "/etc/ascend_install.info",
)
_SAMPLE = 200
"""Packages of the environment whose owners are compared."""


def _look(system: System) -> Iterator[Finding]:
    found = [*_vendor(system), *_environment(system), *_written(system), *_replaceable(system)]
    yield from found
    if not found:
        yield ok(
            PERMISSIONS,
            say(
                "environment {path} of {owner}; working directory and caches are writable",
                path=system.site,
                owner=system.owner(system.site),
            ),
        )


def _vendor(system: System) -> Iterator[Finding]:
    closed = []
    for name in _VENDOR if system.has_npus else ():
        path = system.path(name)
        if not path_exists(path):
            continue
        if not system.may_access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
            closed.append(name)
    if closed:
        yield failure(
            PERMISSIONS,
            say("this user may not read {names}", names=", ".join(closed)),
            expected=say("readable by the group HwHiAiUser, or by everyone (install with --install-for-all)"),
            remedy="sudo usermod -aG HwHiAiUser $USER, then log in again",
            evidence=tuple(f"{name}: {system.owner(system.path(name))}" for name in closed),
            repair=join_vendor_group(system),
        )


def _environment(system: System) -> Iterator[Finding]:
    """Whether a part of the packages belongs to another user: then the next pip fails half-way."""
    site = system.site
    if not system.may_access(site, os.R_OK | os.X_OK):
        yield failure(
            PERMISSIONS,
            say("this user may not read the Python environment {path} ({owner})", path=site, owner=system.owner(site)),
            remedy=say("sudo chmod -R a+rX {path}", path=site),
            repair=("sudo", "chmod", "-R", "a+rX", "--", str(site)),
        )
        return
    if not system.may_access(site, os.W_OK):
        # The administrator manages the environment; packages are read, not written.
        return
    with os.scandir(site) as entries:
        names = [entry.name for _, entry in zip(range(_SAMPLE), entries, strict=False)]
    foreign = [name for name in sorted(names) if not system.may_access(site / name, os.W_OK)]
    if foreign:
        yield warning(
            PERMISSIONS,
            say(
                "{count} {count:package|packages} in {path} may not be changed by this user, such as {name} ({owner})",
                count=len(foreign),
                path=site,
                name=foreign[0],
                owner=system.owner(site / foreign[0]),
            ),
            expected=say("one owner: a pip with sudo left files of root, and the next pip fails half-way"),
            remedy=f"sudo chown -R $USER {shlex.quote(str(site))}",
            repair=_as_user(system, "sudo", "chown", "-R", "{user}", "--", str(site)),
        )


def _written(system: System) -> Iterator[Finding]:
    for name, path in _places(system).items():
        existing = existing_parent(path)
        if not existing.is_dir():
            yield warning(
                PERMISSIONS,
                say("the {name} {path} cannot be made: {there} is a file", name=name, path=path, there=existing),
                expected=say("a directory"),
                remedy=say("choose another path, or move {there} away", there=existing),
            )
        elif not system.may_access(existing, os.W_OK | os.X_OK):
            yield warning(
                PERMISSIONS,
                say(
                    "the {name} {path} is not writable ({owner})",
                    name=name,
                    path=existing,
                    owner=system.owner(existing),
                ),
                expected=say("this user, or a group of this user, as owner"),
                remedy=_remedy(path, existing, system),
                repair=_repair(path, existing, system),
            )


def _places(system: System) -> dict[str, Path]:
    """Where a job writes, by name."""
    home = system.env.get("HOME")
    places = {"~/ascend": Path(home) / "ascend"} if home and system.has_npus else {}
    places |= {say("working directory"): system.cwd, say("cache"): system.cache, say("job registry"): system.state}
    if system.needs and existing_parent(run := system.cwd / system.needs.run_dir).is_dir():
        # Otherwise a file is in the way: the run gets another name, or the check of the recipe fails.
        places[say("run directory")] = run
    return places


def _replaceable(system: System) -> Iterator[Finding]:
    """Directories in which other users can rename files of this user, and so replace a file after it was checked."""
    places = _places(system)
    if system.hub_cache:
        places[say("download directory")] = system.hub_cache
    inside: dict[Path, list[str]] = {}
    for name, path in places.items():
        there = existing_parent(path).resolve()
        for directory in (there, *there.parents):
            mode = directory.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                inside.setdefault(directory, []).append(name)
    for directory, names in inside.items():
        yield warning(
            PERMISSIONS,
            say(
                "every user may rename and replace what is in {path} (mode {mode}, no sticky bit): {names}",
                path=directory,
                mode=f"{stat.S_IMODE(directory.stat().st_mode):o}",
                names=", ".join(names),
            ),
            expected=say("a sticky bit, as /tmp has, or no permission to write for all"),
            remedy=say(
                "chmod +t {path}, as its owner; or keep runs and caches in a directory of your own",
                path=shlex.quote(str(directory)),
            ),
        )


def _remedy(path: Path, existing: Path, system: System) -> str:
    """Never changes the owner of a whole directory above `path`, which may be a home, or `/data` of many users."""
    if path == system.cwd:
        return say("change to a directory of your own")
    place = shlex.quote(str(path))
    return f"sudo chown $USER {place}" if existing == path else f"sudo install -d -o $USER {place}"


def _repair(path: Path, existing: Path, system: System) -> tuple[str, ...]:
    """The command of `_remedy`; empty if the user changes to another directory."""
    if path == system.cwd:
        return ()
    if existing == path:
        return _as_user(system, "sudo", "chown", "{user}", "--", str(path))
    return _as_user(system, "sudo", "install", "-d", "-o", "{user}", "--", str(path))


def join_vendor_group(system: System) -> tuple[str, ...]:
    """The command that adds this user to HwHiAiUser; empty if the system has no name for the user."""
    return _as_user(system, "sudo", "usermod", "-aG", "HwHiAiUser", "{user}")


def _as_user(system: System, *argv: str) -> tuple[str, ...]:
    name = system.user_name()
    return tuple(name if word == "{user}" else word for word in argv) if name else ()


PERMISSIONS_CHECK = Check(
    PERMISSIONS,
    what="Checks that this user may read the vendor's directories and the Python environment, that the packages of the "
    "environment have one owner, and that the working directory, the caches, the job registry, ~/ascend and the run "
    "directory of the recipe are writable, and are not in a directory in which every user may replace them; each with "
    "its owner and group (on Ascend machines mostly HwHiAiUser).",
    why="Software is installed as root and used by others. A directory of mode 750 looks as if CANN were missing; a "
    "pip with sudo leaves packages that the next pip cannot replace; logs and compiled operators that cannot be "
    "written are lost without a message. In a directory that all may write, without a sticky bit, another user can put "
    "another file in the place of a checkpoint after its owner was checked.",
    fix="Add the user to the group HwHiAiUser, or give the directory to the user: sudo chown $USER DIRECTORY.",
    look=_look,
    vital=True,
)
