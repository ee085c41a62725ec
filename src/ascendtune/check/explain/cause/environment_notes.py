"""Notes on the Python environment, from the paths of a traceback: user packages that hide those of the environment."""

from __future__ import annotations

import re

from ascendtune.check.explain.cause.diagnosis import Diagnosis
from ascendtune.check.explain.language import say

_OF_USER = re.compile(
    r".*(?:/AppData/Roaming/Python/Python\d+|/\.local/lib/python[\d.]+)/site-packages/(?P<package>[A-Za-z]\w*)"
)
_OF_WINDOWS = re.compile(r"[A-Za-z]:[\\/](?!/)")
_VERSIONS = "versions"


def with_environment(remedies: tuple[str, ...], found: Diagnosis) -> tuple[str, ...]:
    """The remedies; behind the first, how to leave out the user's packages, where the traceback goes through some."""
    first = found.first
    trace = next((event.trace for event in (first, *found.echoes) if event is not None and event.trace), None)
    if first is None or trace is None:
        return remedies
    files = trace.files
    users = [match["package"] for match in map(_OF_USER.match, files) if match is not None]
    is_of_windows = any(map(_OF_WINDOWS.match, files))
    if users and (_VERSIONS in first.entry.checks or trace.type.endswith("ImportError")):
        unset = "set PYTHONNOUSERSITE=1" if is_of_windows else "export PYTHONNOUSERSITE=1"
        hidden = say(
            "the {package} of the traceback is one of the user's site-packages, which hide those of an environment: "
            "`python -s -m pip show {package}` shows the environment's: the right one: {unset} before the start; none: "
            "`python -m pip install --user -U {package}` changes the user's",
            package=users[-1],
            unset=unset,
        )
        remedies = (*remedies[:1], hidden, *remedies[1:])
    return remedies
