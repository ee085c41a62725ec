"""What the kernel allows this user: open files, processes, locked memory."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok

CODE = "limits"

_WANTED = {"open files": ("-n", resource.RLIMIT_NOFILE, 4096), "processes": ("-u", resource.RLIMIT_NPROC, 4096)}
"""What torchrun with 8 ranks, their loaders and threads comes to, with room."""


def _look(outside: Outside) -> Iterator[Finding]:
    told = []
    found = []
    for name, (flag, number, wanted) in _WANTED.items():
        soft, hard = outside.limits(number)
        told.append(f"{name} {_shown(soft)}")
        if soft != resource.RLIM_INFINITY and soft < wanted:
            can = hard == resource.RLIM_INFINITY or hard >= wanted
            found.append(
                Finding(
                    CODE,
                    "warning",
                    f"at most {soft} {name} (hard limit {_shown(hard)})",
                    expected=f"{wanted} or more",
                    remedy=f"ulimit {flag} {wanted}"
                    if can
                    else f"raise it in /etc/security/limits.conf, log in again "
                    f"(container: --ulimit {'nofile' if flag == '-n' else 'nproc'}=65536)",
                )
            )
    yield from found
    if not found:
        yield ok(CODE, ", ".join(told))


def _shown(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


CHECK = Check(
    CODE,
    what="Reads the limits on open files and on processes of this shell.",
    why="Eight ranks with data loaders and a process group open thousands of files and start thousands of threads. "
    "Past the limit single ranks die with `Too many open files` or `can't start new thread`, minutes into the "
    "job.",
    fix="`ulimit -n 65536` in the shell or job script; for good in /etc/security/limits.conf, or `--ulimit` of the "
    "container.",
    look=_look,
)
