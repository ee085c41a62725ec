"""Checkouts: directories from which packages run that pip did not install."""

from __future__ import annotations

import re

from ascendtune.check.explain.log.frame import is_own, posix
from ascendtune.check.explain.traceback.public_project import project_of
from ascendtune.check.explain.traceback.trace import Trace

INSTALLED = re.compile(r"(?P<folder>.*/(?:site|dist)-packages/(?:[^/]+\.egg/)?(?P<package>[A-Za-z]\w*))/")
SOURCES = ("src", "python", "lib")
"""Directories of a project that contain its package."""
_PLAIN = re.compile(r"(?:~|[A-Za-z]:)?/[\w./+-]+")
"""A path that a shell reads as one word."""
_OF_IMAGE = re.compile(r"/(?:vllm|sgl|verl)-?workspace/")
"""Checkouts in an image with several matching ones: none must be upgraded alone."""
_OF_RAY = re.compile(r"/_ray_pkg_\w+(?:/|$)")
"""Ray's copy of the directory that a job was started in: it has no history of git."""
_IS_HOME = re.compile(r"/(?:home|Users|root|data|mnt|workspace)(?:/[^/]+)?")
"""Rest of an anonymised path, or a directory with several projects."""


def checkouts_in(trace: Trace) -> dict[str, str]:
    """Packages in the frames that were not installed by pip, each with the directory of its checkout."""
    checkouts = {}
    for frame in trace.frames:
        file, package = posix(frame[0]), trace.package_of(frame)
        project, of_project = project_of(file)
        root = of_project if project == package else root_of(file, package) if package and is_own(file) else ""
        if _PLAIN.fullmatch(root) and not (
            _OF_IMAGE.match(f"{root}/") or _OF_RAY.search(root) or _is_shared(root, package)
        ):
            checkouts[package] = root
    return checkouts


def _is_shared(root: str, package: str) -> bool:
    """Whether a directory contains several projects, or the path was anonymised above the package."""
    return _IS_HOME.fullmatch(root) is not None and package[:3].lower() not in root.lower()


def root_of(file: str, package: str) -> str:
    """Directory of the project with a file of `package`; for an installed package its own directory."""
    if (installed := INSTALLED.match(file)) is not None:
        return installed["folder"] if installed["package"] == package else ""
    folder, separator, _ = file.rpartition(f"/{package}/")
    while separator and folder.rpartition("/")[2] in SOURCES:
        folder = folder.rpartition("/")[0]
    return folder if separator else ""
