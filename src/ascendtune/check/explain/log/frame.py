"""Frames in the lines of tracebacks: of Python, IPython, Colab and rich."""

from __future__ import annotations

import re

_FRAME = re.compile(r'\s*(?:[|>]\s*)?File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_CUT_FRAME = re.compile(
    r'\s{0,4}[Fil]{0,3}e? ?"?(?P<file>[^\s":][^"]*\.pyx?)", line (?P<line>\d+), in (?P<function>\S.*)'
)
"""A frame whose line lost its beginning when it was copied."""
_PREFIXED_FRAME = re.compile(
    r"(?P<prefix>[EWIF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S{1,160}:\d+\] (?:\[[\w/]*\] )*"  # glog, torch's loggers
    r'|\S.{0,40}?(?<!\w))(?=  File "[^"]+", line \d+, in \S)'
)
_NOTEBOOK_FRAME = re.compile(r"File (?P<file>[^\s:\"]+\.pyx?):(?P<line>\d+)(?:, in (?P<function>[\w.<>]+).*)?\s*$")
_LINKED_FRAME = re.compile(
    r"\[?(?P<file>[~/][^\s\])]*\.pyx?)(?:\]\([^\s)]*\))? in (?P<function><cell line: \d+>|[\w.<>]+)(?:\(.*\)?)?$"
)
"""A frame of IPython before version 8 and of Colab; the line number is below it, beside the code."""
_PANEL_FRAME = re.compile(r"\s*│ (?P<file>[^\s│'\"=]+\.pyx?):(?P<line>\d+) in (?P<function>[\w.<>]+) *│\s*$")
"""A frame in a panel of rich."""
_PLACEHOLDER = re.compile(r"<[\w -]*(?:lib|package|env|python)[\w -]*>/", re.IGNORECASE)
"""Placeholder for the directory of installed packages, in anonymised logs."""
_NOT_OURS = (
    "site-packages/",
    "dist-packages/",
    "/lib/python3",
    "<frozen ",
    "<string>",
    "<stdin>",
    "<__array_function__",
)
_STANDARD_LIBRARY = re.compile(r"/lib(?:64)?/python3[.\d]*/(?!(?:site|dist)-packages/)|^<(?![\w -]+>/)")
_BUILD_BACKENDS = re.compile(
    r"/(?:setuptools|pip|wheel|pyproject_hooks|build|hatchling|flit_core|poetry|mesonpy|scikit_build_core)/[\w./]*\.py$"
)
_TEMPORARY = re.compile(
    r"/(?:pip-(?:install|build-env|req-build|modern-metadata|ephem-wheel-cache|standalone-pip|wheel)-\w+|builds-v\d+|sdists-v\d+|"
    r"build-env-\w+)/"
)
"""Directories that pip, uv and build create for one build and remove after it."""
_PROGRAM = re.compile(r"/s?bin/[^/.]+$")
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_OF_DRIVE = re.compile(r"(?<![A-Za-z])[A-Za-z]:\\{2,}[^\n]*")
_ESCAPED = re.compile(r"\\{2,}")
COMPILED = (".pyx", ".pxi")
"""Suffixes of the sources of compiled modules, which an installation lacks."""


def frame_of(text: str) -> tuple[str, int, str] | None:
    """(file, line, function) of a line that names a frame; line 0 if the number is beside the code below it."""
    if match := _FRAME.match(text) or _NOTEBOOK_FRAME.match(text) or _PANEL_FRAME.match(text) or _CUT_FRAME.match(text):
        return without_escapes(match["file"]), int(match["line"]), (match["function"] or "").strip()
    if match := _LINKED_FRAME.match(text):
        return match["file"], 0, match["function"]
    return None


def prefix_of_frame(text: str) -> str:
    """Prefix of a logger before a Python frame, which is indented by two blanks; else empty."""
    match = _PREFIXED_FRAME.match(text)
    return match["prefix"] if match is not None else ""


def without_escapes(text: str) -> str:
    """Replace doubled backslashes in Windows paths: Python and JSON write each backslash twice."""
    return _OF_DRIVE.sub(lambda path: _ESCAPED.sub(r"\\", path[0]), text)


def posix(file: str) -> str:
    return file.replace("\\", "/")


def is_own(file: str) -> bool:
    """Whether a file does not belong to an installed package, to Python, or to a command of a package."""
    return (
        not file.endswith(COMPILED)
        and not is_command(file)
        and not any(part in posix(file) for part in _NOT_OURS)
        and not is_of_standard_library(file)
        and _PLACEHOLDER.match(file) is None
    )


def is_command(file: str) -> bool:
    """Whether a file is a script that pip generates for a command of a package."""
    return _PROGRAM.search(file) is not None


def is_installed(file: str) -> bool:
    """Whether a file is in a directory of installed packages."""
    return _PACKAGES.match(posix(file)) is not None


def from_package_on(file: str) -> str:
    """Path of a file relative to the directory of installed packages; any other path unchanged."""
    return _PACKAGES.sub("", posix(file))


def is_of_standard_library(file: str) -> bool:
    """Whether a file belongs to Python's standard library, or the code is not in a file."""
    return _STANDARD_LIBRARY.search(posix(file)) is not None


def is_of_build(file: str) -> bool:
    """Whether a file belongs to a build backend, or to the temporary directory of a build."""
    file = posix(file)
    return _TEMPORARY.search(file) is not None or ("-packages/" in file and _BUILD_BACKENDS.search(file) is not None)


def is_python_frame(text: str) -> bool:
    """Whether a line names a frame in Python's own form."""
    return _FRAME.match(text) is not None
