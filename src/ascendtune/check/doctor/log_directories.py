"""Checks disk space, size and quota of the directories for CANN's logs and compilers' kernels."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import System, existing_parent, path_exists
from ascendtune.check.finding import Finding, ok, warning
from ascendtune.core.files import walk
from ascendtune.core.units import format_bytes

LOG_DIRECTORIES = "log_directories"

_LOG = "log"
_CACHES = {"CANN": "ASCEND_CACHE_PATH", "Triton": "TRITON_CACHE_DIR", "Inductor": "TORCHINDUCTOR_CACHE_DIR"}
"""Compiled kernels, and the variable that moves them."""
_ENOUGH_BYTES = 2 << 30
_ENOUGH_INODES = 20_000
_LARGE_BYTES = 20 << 30
_MOST_FILES, _MOST_SECONDS = 50_000, 1.5
"""Limits of a walk; its result is then a lower bound."""
_NEAR_QUOTA = 0.95
_QUOTA = re.compile(r"^\s*(\S+)\s+(\d+)(\*?)\s+(\d+)\s+(\d+)", re.MULTILINE)


def _look(system: System) -> Iterator[Finding]:
    places = {name: path for name, path in _places(system).items() if path_exists(path)}
    sizes, found = [], []
    deadline = time.monotonic() + _MOST_SECONDS
    for name, path in places.items():
        size, is_whole = _size(path, deadline)
        sizes.append(f"{path} {'' if is_whole else '>= '}{format_bytes(size)}")
        if size > _LARGE_BYTES:
            found.append(_large(name, path, size))
    for directory in dict.fromkeys(existing_parent(path) for path in _places(system).values()):
        found += _room(system, directory)
    found += [*_shared(system), *_quota(system)]
    yield from found
    if not found and (sizes or system.has_npus):
        yield ok(LOG_DIRECTORIES, say("; ").join(sizes) or say("no logs and no compiled kernels yet"))


def _places(system: System) -> dict[str, Path]:
    env = system.env
    home = Path(env.get("HOME") or "/root")
    found: dict[str, Path] = {}
    if system.has_npus:
        # The first takes precedence (torch_npu's page on ACL_OP_COMPILER_CACHE_DIR).
        cache = env.get("ACL_OP_COMPILER_CACHE_DIR") or env.get("ASCEND_CACHE_PATH")
        work = env.get("ASCEND_WORK_PATH")
        found[_LOG] = system.cann_logs
        # Not the directories of the variables: they may contain other files, and a remedy removes the paths listed
        # here.
        found["CANN"] = Path(cache) / "kernel_cache" if cache else home / "atc_data"
        found["kernel_meta"] = (Path(work) if work else system.cwd) / "kernel_meta"
    found["Triton"] = Path(env.get("TRITON_CACHE_DIR") or home / ".triton")
    if env.get("TORCHINDUCTOR_CACHE_DIR"):
        found["Inductor"] = Path(env["TORCHINDUCTOR_CACHE_DIR"])
    return found


def _size(path: Path, deadline: float) -> tuple[int, bool]:
    """Bytes of the files below `path`, links not followed, and whether all were counted."""
    total, count = 0, 0
    for directory, _, names in walk(path):
        for name in names:
            with suppress(OSError):
                total += (directory / name).lstat().st_size
            count += 1
            if count > _MOST_FILES or time.monotonic() > deadline:
                return total, False
    return total, True


def _large(name: str, path: Path, size: int) -> Finding:
    place = shlex.quote(str(path))
    command = f"find {place} -name '*.log' -mtime +7 -delete" if name == _LOG else f"rm -r {place}"
    return warning(
        LOG_DIRECTORIES,
        say("{path} contains {size}", path=path, size=format_bytes(size)),
        expected=say("less than {size}", size=format_bytes(_LARGE_BYTES)),
        remedy=say("while no job runs: {command}", command=command),
    )


def _room(system: System, directory: Path) -> Iterator[Finding]:
    with suppress(OSError):
        free, _ = system.space(directory)
        if free < _ENOUGH_BYTES:
            yield warning(
                LOG_DIRECTORIES,
                say(
                    "the file system of {path} has {free} free for logs and kernels",
                    path=directory,
                    free=format_bytes(free),
                ),
                expected=say("{size} or more", size=format_bytes(_ENOUGH_BYTES)),
                remedy=say(
                    "free space, or export ASCEND_WORK_PATH (logs) and ASCEND_CACHE_PATH (kernels), "
                    "directories on another disk"
                ),
            )
        inodes, total = system.inodes(directory)
        if total and inodes < _ENOUGH_INODES:
            yield warning(
                LOG_DIRECTORIES,
                say("the file system of {path} has room for {inodes} more files", path=directory, inodes=inodes),
                expected=say("{count} or more: every rank writes many small files", count=_ENOUGH_INODES),
                remedy=say("remove small files; `df -i` shows the file systems that are full"),
            )


def _shared(system: System) -> Iterator[Finding]:
    """Caches of kernels on a network file system: all ranks of all hosts compile into them.

    DeepSpeed warns of Triton's there, too ("appears to be on an NFS system", for slowdowns and hangs).
    """
    mounts = {name: system.mount(existing_parent(path)) for name, path in _places(system).items() if name in _CACHES}
    remote = {name: mount for name, mount in mounts.items() if mount.is_remote}
    if remote and system.has_npus:
        yield warning(
            LOG_DIRECTORIES,
            say(
                "compiled kernels ({names}) are kept on {kind}",
                names=", ".join(remote),
                kind=next(iter(remote.values())).kind,
            ),
            expected=say("a local disk: all ranks of all hosts write there at the first step"),
            remedy="export " + " ".join(f"{_CACHES[name]}=/var/tmp/$USER/{name.lower()}" for name in remote),
        )


def _quota(system: System) -> Iterator[Finding]:
    """Quotas of this user that are nearly used, by the program `quota`, in blocks of 1 KiB."""
    done = system.run(["quota", "-w", "-p"], timeout_seconds=2)
    for device, used, is_over, soft, hard in _QUOTA.findall(done.output) if not done.timed_out else ():
        limit = int(soft) or int(hard)
        if limit and (is_over or int(used) > _NEAR_QUOTA * limit):
            yield warning(
                LOG_DIRECTORIES,
                say(
                    "this user's quota on {device} is nearly used: {used} of {limit}",
                    device=device,
                    used=format_bytes(int(used) << 10),
                    limit=format_bytes(limit << 10),
                ),
                expected=say("room for logs, kernels and checkpoints"),
                remedy=say("remove files of yours there, or ask for a larger quota"),
            )


LOG_DIRECTORIES_CHECK = Check(
    LOG_DIRECTORIES,
    what="Measures CANN's logs (~/ascend/log or ASCEND_PROCESS_LOG_PATH) and the caches of compiled kernels, and "
    "checks the free space, the free inodes, this user's quota and the file system where they are.",
    why="Every rank writes logs, and every new shape compiles kernels. When the disk, the inodes or the quota are used "
    "up, the job fails with an error of the compiler (EZ9999, 500001) or loses the log that would explain a failure.",
    fix="Remove old logs (find ~/ascend/log -name '*.log' -mtime +7 -delete), or move logs with ASCEND_WORK_PATH and "
    "compiled kernels with ASCEND_CACHE_PATH. Removed kernels are compiled again.",
    look=_look,
)
