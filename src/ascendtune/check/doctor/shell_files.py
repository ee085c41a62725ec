"""What the start files of the shell set: twice, differently, or from a place that has gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok

CODE = "shell_files"

_SYSTEM = ("/etc/environment", "/etc/profile", "/etc/bash.bashrc", "/etc/bashrc")
_OWN = (".bash_profile", ".bash_login", ".profile", ".bashrc", ".zshenv", ".zshrc")
_EXPORT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\S.*?)\s*$")
_SOURCE = re.compile(r"^\s*(?:source|\.)\s+['\"]?([^\s'\";&|]+set_env\.sh)")
_WATCHED = re.compile(r"(?:ASCEND|HCCL|PYTORCH|TORCH|CUDA|NCCL|GLOO|HF)_\w+|(?:https?|all|no)_proxy", re.IGNORECASE)
_SECRET = re.compile(r"TOKEN|KEY|SECRET", re.IGNORECASE)
_RELEASE = re.compile(r"/(?:ascend-toolkit|cann)[/-](\d[^/]*)/")

Line = tuple[str, int, str]
"""File, line number from 1, text."""


def _look(outside: Outside) -> Iterator[Finding]:
    lines = list(_lines(outside))
    if not lines:
        return
    found = [*_twice(lines), *_sourced(outside, lines)]
    yield from found
    if not found:
        files = len({file for file, _, _ in lines})
        yield ok(CODE, f"{files} start files set nothing twice")


def _lines(outside: Outside) -> Iterator[Line]:
    home = outside.env.get("HOME", "")
    profiles = sorted(outside.path("/etc/profile.d").glob("*.sh"))
    names = [*_SYSTEM, *(f"/etc/profile.d/{path.name}" for path in profiles)]
    for name in names:
        yield from ((name, number, text) for number, text in enumerate(outside.text(name).splitlines(), 1))
    for name in _OWN if home else ():
        try:
            text = (Path(home) / name).read_text(errors="replace")
        except OSError:
            continue
        yield from ((f"~/{name}", number, line) for number, line in enumerate(text.splitlines(), 1))


def _twice(lines: list[Line]) -> Iterator[Finding]:
    """A value that takes in the old one (`$NAME`) adds to it; branches of an `if` are indented, and left out."""
    places: dict[str, list[tuple[str, int, str]]] = {}
    for file, number, text in lines:
        found = None if text[:1].isspace() else _EXPORT.match(text)
        if found and _WATCHED.fullmatch(found[1]) and f"${found[1]}" not in found[2].replace("{", ""):
            places.setdefault(found[1], []).append((file, number, found[2].strip("\"'")))
    for name, settings in places.items():
        if len({value for _, _, value in settings}) > 1:
            shown = "***" if _SECRET.search(name) else None
            yield Finding(
                CODE,
                "warning",
                f"{name} is set {len(settings)} times, with different values; the last one replaces the others",
                expected="one line; values are not added up",
                remedy=f"keep one of the lines, with everything that it shall hold, and open a new shell: {name}",
                evidence=tuple(f"{file}:{number}: {shown or value}" for file, number, value in settings),
            )


def _sourced(outside: Outside, lines: list[Line]) -> Iterator[Finding]:
    scripts = [(file, number, found[1]) for file, number, text in lines if (found := _SOURCE.match(text))]
    home = outside.env.get("HOME", "")
    named = [(file, number, re.sub(r"^(~|\$\{?HOME\}?)(?=/)", lambda _: home, path)) for file, number, path in scripts]
    gone = [each for each in named if each[2].startswith("/") and "$" not in each[2] and not _exists(outside, each[2])]
    if gone:
        yield Finding(
            CODE,
            "warning",
            f"{gone[0][2]} is sourced and does not exist",
            expected="set_env.sh of a CANN that is installed",
            remedy="correct the line, or take it out",
            evidence=tuple(f"{file}:{number}: {path}" for file, number, path in gone),
        )
    releases = {found[1] for _, _, path in named if (found := _RELEASE.search(path))}
    if len(releases) > 1:
        yield Finding(
            CODE,
            "warning",
            f"every shell loads CANN {' and '.join(sorted(releases))}, mixed",
            expected="one release",
            remedy="keep one line with set_env.sh",
            evidence=tuple(f"{file}:{number}: {path}" for file, number, path in named),
        )


def _exists(outside: Outside, path: str) -> bool:
    return outside.path(path).exists() or Path(path).exists()


CHECK = Check(
    CODE,
    what="Reads /etc/environment, /etc/profile, /etc/profile.d and the start files in the home directory, and looks "
    "for variables of Ascend, CUDA, PyTorch, hubs and proxies that are set more than once with different values, "
    "and for set_env.sh scripts that do not exist or are of two CANN releases.",
    why="A second export replaces the first. `PYTORCH_NPU_ALLOC_CONF=expandable_segments:True` followed by "
    "`PYTORCH_NPU_ALLOC_CONF=max_split_size_mb:256` leaves only the second, and nobody notices. Two set_env.sh "
    "mix two releases of CANN in every shell.",
    fix="Keep one line for each variable and one set_env.sh. Nothing is run to find this out; what a script decides "
    "by an `if` is not seen.",
    look=_look,
)
