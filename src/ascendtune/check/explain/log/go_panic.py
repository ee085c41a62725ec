"""Panics of programs in Go: the innermost frame of the program itself, by the lines below."""

from __future__ import annotations

import re

_PANIC = re.compile(r"\bObserved a panic\b|(?<!\w)panic: |\bfatal error: concurrent map ")
_FUNCTION = re.compile(
    r"\s*(?:\S+ )?(?P<module>[\w.@~-]+(?:/[\w.@~-]+)*?)\.(?P<name>(?:\(\*?\w+(?:\[[^\]]*\])?\)\.)?\w+(?:\.\w+)*)\("
)
"""A frame: the path of a package, a function or method of it, and its arguments."""
_PLACE = re.compile(r"\s*\S*?(?P<file>\w[\w.-]*\.go):(?P<line>\d+)\b")
_RERAISED = re.compile(r"\s*panic\(")
_OF_RUNTIME = ("runtime", "k8s.io/apimachinery/pkg/util/runtime", "sync", "reflect", "testing")
"""Packages whose frames only hand a panic on, or check an argument."""
_FORGES = ("github.com", "gitlab.com", "gitee.com", "gitcode.com", "bitbucket.org")
"""Hosts of which a module's path has the owner and the name; of others, it has the name alone."""


def is_panic(said: str) -> bool:
    """Whether a line says that a program in Go panicked."""
    return _PANIC.search(said) is not None


def frame_in(said: str, below: list[str]) -> str:
    """Where the program panicked, as "in FUNCTION (FILE:LINE) of MODULE", without the module where that is "main".

    Empty where the lines name no frame.

    Args:
        said: the line of the panic; in logs of JSON it holds the stack.
        below: the lines below it.
    """
    rows = [*said.replace("\\t", "\t").split("\\n")[1:], *below]
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
    """The module of a package: where its path begins with a host, this with what follows; else the first part."""
    parts = path.split("/")
    return "/".join(parts[: 3 if parts[0] in _FORGES else 2 if "." in parts[0] else 1])
