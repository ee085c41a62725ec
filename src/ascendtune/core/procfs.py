"""Processes as /proc describes them: identity, owner, memory, open files.

A pid alone does not identify a process: pids are reused. A pid with the start time of its process does, until the
machine restarts. That time is read in clock ticks since boot; as a date it would move whenever the clock is set.
"""

from __future__ import annotations

import os
import pwd
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stat:
    """A live process. `start_ticks`: when it started, in clock ticks since boot."""

    pid: int
    name: str
    state: str
    """The kernel's letter: R runs, S sleeps, D waits in the kernel and cannot be killed, T is stopped."""
    parent: int
    process_group: int
    session: int
    start_ticks: int

    @property
    def age_seconds(self) -> float:
        uptime = float((_PROC / "uptime").read_text().split()[0])
        return max(0.0, uptime - self.start_ticks / _TICKS_PER_SECOND)


def stat_of(pid: int) -> Stat | None:
    """The process `pid`, or None if there is none. A zombie counts as ended."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name may contain spaces and parentheses; the last parenthesis closes it.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if fields[0] in "ZX":
        return None
    return Stat(
        pid=pid,
        name=head.partition("(")[2],
        state=fields[0],
        parent=int(fields[1]),
        process_group=int(fields[2]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
    )


def is_alive(pid: int, start_ticks: int, *, boot: str, namespace: str, host: str) -> bool | None:
    """Whether a recorded process still runs; None if its pid has no meaning here: on another machine, in another
    container.

    Args:
        boot: `boot_id` of its machine. It identifies the machine, too: the name of a host may change at any time.
        namespace: its `pid_namespace`.
        host: the name of its machine, which distinguishes a restart of this machine from another machine.
    """
    if boot != boot_id():
        return None if host != socket.gethostname() else False
    if namespace != pid_namespace():
        return None
    stat = stat_of(pid)
    return stat is not None and stat.start_ticks == start_ticks


def stats() -> Iterator[Stat]:
    """Every process that can be seen from here."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (stat := stat_of(int(entry.name))):
            yield stat


def owner_of(pid: int) -> int | None:
    """The user id of a process; None when it has ended, or its effective user is not its real user."""
    # The owner of /proc/PID does not suffice: it is root for every process that has changed its user.
    with suppress(OSError):
        status = (_PROC / str(pid) / "status").read_text(errors="replace")
        if uids := re.search(r"^Uid:\s+(\d+)\s+(\d+)", status, re.MULTILINE):
            return int(uids[1]) if uids[1] == uids[2] else None
    return None


def user_name(uid: int | None) -> str:
    """The name of a user; the number if the user has no name."""
    if uid is None:
        return "another user"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def command_of(pid: int) -> str:
    """The command line on one line, words joined by spaces; the name in brackets if there is none."""
    with suppress(OSError):
        words = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")
        return _shown(words) or f"[{_shown((_PROC / str(pid) / 'comm').read_bytes().decode(errors='replace'))}]"
    return "-"


def _shown(words: str) -> str:
    """`words` without control characters, which would reach the terminal: commands of other users are arbitrary
    text."""
    return " ".join("".join(each if each.isprintable() else " " for each in words).split())


def memory_of(pid: int) -> int | None:
    """Resident memory in bytes; None when the process has ended."""
    with suppress(OSError):
        pages = (_PROC / str(pid) / "statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return None


def environment_of(pid: int) -> Mapping[str, str]:
    """The environment with which a process was started; empty without permission to read it."""
    try:
        content = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in content.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def open_files(pid: int) -> frozenset[str]:
    """Targets of the file descriptors of a process; empty without permission to read them."""
    files = set()
    with suppress(OSError):
        for descriptor in (_PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                files.add(str(descriptor.readlink()))
    return frozenset(files)


def is_service(pid: int) -> bool:
    """Whether systemd runs the process as a service of the machine: then it is not an orphan."""
    with suppress(OSError):
        return "/system.slice/" in (_PROC / str(pid) / "cgroup").read_text(errors="replace")
    return False


def boot_id() -> str:
    """The id of this boot: it changes with every start of the machine."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def namespace(kind: str) -> str:
    """The namespace of this process: of the network ("net"), of mounts ("mnt"), of processes ("pid")."""
    return str((_PROC / "self/ns" / kind).readlink())


def pid_namespace() -> str:
    """The pid namespace of this process; a container usually has its own."""
    return namespace("pid")


def is_first_pid_namespace() -> bool:
    """Whether this is the host's pid namespace."""
    return pid_namespace() == f"pid:[{_FIRST_PID_NAMESPACE}]"


def has_signal_handler(pid: int, number: int) -> bool:
    """Whether a process has a handler for the signal `number`; many signals end a process without one."""
    with suppress(OSError):
        status = (_PROC / str(pid) / "status").read_text(errors="replace")
        if caught := re.search(r"^SigCgt:\s+([0-9a-f]+)", status, re.MULTILINE):
            return bool(int(caught[1], 16) >> (number - 1) & 1)
    return False


def waits_in(pid: int) -> str | None:
    """The kernel's function in which a process sleeps; None if it does not sleep, or without permission to read it."""
    with suppress(OSError):
        name = (_PROC / str(pid) / "wchan").read_text()
        return name if name not in ("", "0") else None
    return None
