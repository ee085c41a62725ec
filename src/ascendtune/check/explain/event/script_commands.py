"""Errors of a launch script's own commands, after which the script continues without `set -e`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ascendtune.check.explain.event.event import Event

_COMMANDS = (
    "ldconfig|sysctl|mkdir|rmdir|chmod|chown|ln|cp|mv|rm|cat|grep|sed|awk|tar|touch|rsync|mount|umount|modprobe|lspci|"
    "ibstat|ibv_devinfo|numactl|kill|pkill|killall|which|wget|curl|git|hostname|ulimit|source|module|conda|tput|stty|"
    "mesg|perl|free|nvidia-smi|npu-smi|ls|du|df|find|tee|dmesg|tail|head|sort"
)
_OF_COMMAND = re.compile(
    rf"(?:\S+: )?(?:line )?(?:\d+: )?(?:(?:\S*/)?(?P<command>[\w.+-]+): (?:command )?not found|"
    rf"command not found: (?P<word>[\w.+-]+))$|"
    rf"(?:\S+: line \d+: )?(?:\S*/)?(?P<of_system>{_COMMANDS})(?:\.real)?: |"
    r"E: Could not (?:open lock file|get lock) |"
    r"fatal: (?P<git>not a git repository|detected dubious ownership|unsafe repository|No names found|"
    r"destination path)|"
    r"(?P<module>ModuleCmd_\w+\.c\(\d+\):ERROR|Lmod has detected the following error)|"
    r"(?P<sudo>sudo): unable to resolve host |(?P<debconf>dpkg-preconfigure): unable to re-open stdin|"
    r"Error(?: response from daemon)?: (?P<docker>[Nn]o such container)\b|"
    r"Error: (?:uninstall: )?(?:Release not loaded: .*)?(?P<helm>release: not found)$|"
    r"Error from server \((?P<kubectl>NotFound)\): "
)
"""Errors of a shell, or of a command of a script."""
_BUILDS = ("build", "packages", "package-managers")
"""Families of failures that a missing command may cause."""
_COMPILERS = re.compile(
    r"(?:[\w-]+-)?(?:nvcc|hipcc|g?cc|g\+\+|c\+\+|clang(?:\+\+)?|ld|ar|ptxas|cicc|ccec|bisheng|cmake|make|ninja|gfortran)"
    r"(?:-\d+)?"
)
_OF_BUILD = re.compile(r"\bninja\b|torch_extensions|[Bb]uilding extension|\b[Cc]ompil|\bcmake\b|\bmake\b|\bgcc\b")
"""Words of a failure that a missing compiler may cause."""
_REPORT_OF_COMMAND = "child-command"
"""Entry for Python's report of a failed command."""
_NO_SUCH_COMMAND = re.compile(r"\b(?:exit(?:ed)?|status|code|[Ee]rror)\b\D{0,20}\b127\b")
"""Exit status of a shell that did not find a command, in the report of the shell's caller."""


def is_of_script(event: Event) -> bool:
    """Whether the line is an error of a shell, or of a system command that it ran."""
    return event.trace is None and _OF_COMMAND.match(event.text) is not None


def _tells_nothing(other: Event) -> bool:
    """Whether an event only reports another failure, which may be a known error of a command."""
    is_exit = other.trace is not None and other.trace.type == "SystemExit"
    return other.is_vague or is_exit or other.entry.id == _REPORT_OF_COMMAND or other.entry.kind == "wrapper"


def gives_way(event: Event, others: Sequence[Event]) -> bool:
    """Whether another failure ended the job, and not this error of a script's command before or after it."""
    match = _OF_COMMAND.match(event.text) if event.trace is None else None
    if match is None:
        return False
    named = match["command"] or match["word"] or match["of_system"]
    command = named or (match.lastgroup or "apt")
    is_missing = match["command"] is not None or match["word"] is not None
    needs_it = _OF_BUILD if _COMPILERS.fullmatch(command) else None
    return any(
        not (event.entry.specific and _tells_nothing(other))
        and (other.is_raised or (other.weight <= 1 and not is_of_script(other)))
        and other.source == event.source
        and other.entry.family not in _BUILDS
        and command not in other.text
        and not (is_missing and _NO_SUCH_COMMAND.search(other.text))
        and (needs_it is None or needs_it.search(other.text) is None)
        for other in others
    )
