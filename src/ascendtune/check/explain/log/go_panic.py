"""Panics of Go programs: the innermost frame of the program itself, from the lines below."""

from __future__ import annotations

import re

_PANIC = re.compile(r"\bObserved a panic\b|(?<!\w)panic: |\bfatal error: concurrent map ")
_FUNCTION = re.compile(
    r"\s*(?:\S+ )?(?P<module>[\w.@~-]+(?:/[\w.@~-]+)*?)\.(?P<name>(?:\(\*?\w+(?:\[[^\]]*\])?\)\.)?\w+(?:\.\w+)*)\("
)
"""A frame: path of a package, a function or method of it, and its arguments."""
_PLACE = re.compile(r"\s*\S*?(?P<file>\w[\w.-]*\.go):(?P<line>\d+)\b")
_RERAISED = re.compile(r"\s*panic\(")
_OF_RUNTIME = ("runtime", "k8s.io/apimachinery/pkg/util/runtime", "sync", "reflect", "testing")
"""Packages whose frames only pass a panic on, or check an argument."""
_FORGES = ("github.com", "gitlab.com", "gitee.com", "gitcode.com", "bitbucket.org")
"""Hosts in whose module paths an owner and a name follow; after other hosts only a name follows."""


def is_panic(message: str) -> bool:
    """Whether a line reports a panic of a Go program."""
    return _PANIC.search(message) is not None


def frame_in(message: str, below: list[str]) -> str:
    """Place of the panic, as "in FUNCTION (FILE:LINE) of MODULE", without the module if it is "main".

    Empty if the lines name no frame.

    Args:
        message: the line of the panic; in JSON logs it contains the stack.
        below: the lines below it.
    """
    rows = [*message.replace("\\t", "\t").split("\\n")[1:], *below]
    reraised = [index for index, row in enumerate(rows) if _RERAISED.match(row)]
    rows = rows[reraised[-1] + 1 :] if reraised else rows
    for index, row in enumerate(rows[:-1]):
        function, place = _FUNCTION.match(row), _PLACE.match(rows[index + 1])
        if function and place and function["module"] not in _OF_RUNTIME:
            name = re.sub(r"[(*)]|\[[^\]]*\]", "", function["name"])
            module = _module(function["module"])
            return f"in {name} ({place['file']}:{place['line']})" + (f" of {module}" if module != "main" else "")
    return ""


def _module(path: str) -> str:
    """Module of a package: host and name (on a forge also the owner) if its path begins with a host, else the first
    part of the path."""
    parts = path.split("/")
    return "/".join(parts[: 3 if parts[0] in _FORGES else 2 if "." in parts[0] else 1])
