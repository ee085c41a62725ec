"""Packages of the log whose versions do not fit each other, for a crash without a message and for failures of code that
does not fit."""

from __future__ import annotations

import re

from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.facts.facts import Facts
from ascendtune.check.explain.facts.misfits import Misfit, misfits_in
from ascendtune.check.explain.language import say

_CRASH = re.compile(
    r"[Ss]egmentation fault|Segfault|SIGSEGV|SIGABRT|core dumped|[Ee]xit ?code:? ?-(?:6|11)\b|\bAborted\b|"
    r"[Bb]us error|[Ii]llegal instruction"
)
_IMPORT = ("ImportError", "ModuleNotFoundError", "OSError", "AttributeError", "RuntimeError", "TypeError")
"""Exceptions of packages that do not fit."""
_VERSIONS = "versions"
_PREFIX = "version."


def misfit_of(first: Event, facts: Facts) -> Misfit | None:
    """The misfit that may be the reason of a failure: of a crash any one, else one of a package in its message or
    traceback."""
    versions = {name.removeprefix(_PREFIX): shown for name, shown in facts.items() if name.startswith(_PREFIX)}
    misfits = list(misfits_in(versions)) if len(versions) > 1 else []
    if not misfits or first.entry.kind in ("notice", "consequence"):
        return None
    if (_CRASH.search(first.text) and first.trace is None) or _CRASH.search(first.message):
        return misfits[0]
    trace = first.trace
    is_of_versions = _VERSIONS in first.entry.checks or (trace is not None and trace.type in _IMPORT)
    if not is_of_versions:
        return None
    said = " ".join((first.text, *(trace.files if trace is not None else ())))
    of_failure = (each for each in misfits if not each.is_of_crashes and _names(each.packages[-1], said))
    return next(of_failure, None)


def told(misfit: Misfit) -> str:
    """Words for the headline."""
    return say(" (by the log: {versions}, which do not fit each other)", versions=misfit.pair)


def remedy(misfit: Misfit) -> str:
    """The command that shows the versions, and the release to install."""
    return say(
        "`pip list | grep -i {names}`: as in the log ({versions}): these do not fit each other: pip install {use}",
        names=" ".join(f"-e {name}" for name in misfit.shown),
        versions=misfit.pair,
        use=misfit.use,
    )


def _names(package: str, said: str) -> bool:
    return re.search(rf"(?<![a-z_]){package}(?![a-z])", said) is not None
