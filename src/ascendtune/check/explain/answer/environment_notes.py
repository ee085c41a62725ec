"""Notes on the Python environment: user packages that hide those of the environment; a module missing on one rank."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ascendtune.check.explain.cause.diagnosis import Diagnosis
from ascendtune.check.explain.event.scan import Scan
from ascendtune.check.explain.language import say

_OF_USER = re.compile(
    r".*(?:/AppData/Roaming/Python/Python\d+|/\.local/lib/python[\d.]+)/site-packages/(?P<package>[A-Za-z]\w*)"
)
_OF_WINDOWS = re.compile(r"[A-Za-z]:[\\/](?!/)")
_VERSIONS = "versions"
_NO_MODULE = "No module named"
_HIDDEN = (
    "the {package} of the traceback is one of the user's site-packages, which hide those of an environment: "
    "`python -s -m pip show {package}` shows the environment's: the right one: {unset} before the start; none: "
    "`python -m pip install --user -U {package}` changes the user's"
)
_COMPARE_PYTHONS = (
    "by these logs rank {rank} alone lacks it: its host, or the Python it was started with, differs from the others': "
    "compare `which python; python -m pip list` there and on another host, and install there what the others have"
)


def with_environment(remedies: tuple[str, ...], diagnosis: Diagnosis, scans: Sequence[Scan]) -> tuple[str, ...]:
    """Add notes to the remedies: after the first one on the user's packages, if the traceback contains some; before all
    on the comparison of hosts, if one rank alone lacks a module.
    """
    first = diagnosis.first
    trace = next((event.trace for event in (first, *diagnosis.echoes) if event is not None and event.trace), None)
    files = trace.files if trace is not None else ()
    users = [match["package"] for match in map(_OF_USER.match, files) if match is not None]
    is_import = trace is not None and trace.type.endswith("ImportError")
    if users and first is not None and (_VERSIONS in first.entry.checks or is_import):
        unset = "set PYTHONNOUSERSITE=1" if any(map(_OF_WINDOWS.match, files)) else "export PYTHONNOUSERSITE=1"
        remedies = (*remedies[:1], say(_HIDDEN, package=users[-1], unset=unset), *remedies[1:])
    return (say(_COMPARE_PYTHONS, rank=diagnosis.rank), *remedies) if _lacks_alone(diagnosis, scans) else remedies


def _lacks_alone(diagnosis: Diagnosis, scans: Sequence[Scan]) -> bool:
    """Whether only one of several ranks lacks a module."""
    if diagnosis.first is None or diagnosis.rank is None or _NO_MODULE not in diagnosis.first.text:
        return False
    texts_of_ranks = [(rank, event.text) for event in diagnosis.echoes for rank in event.text_by_rank]
    others = {rank for rank, _ in texts_of_ranks} | {scan.rank for scan in scans if not scan.is_empty}
    lack = {rank for rank, text in texts_of_ranks if _NO_MODULE in text}
    return bool(others - {diagnosis.rank, None}) and lack <= {diagnosis.rank}
