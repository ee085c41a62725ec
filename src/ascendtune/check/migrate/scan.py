"""Scans a file or a tree of files: one finding for each rule that applies, with all places."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ascendtune.check.finding import Finding, ok
from ascendtune.check.migrate.python_code import find_in_python
from ascendtune.check.migrate.rules import RULES, Hit
from ascendtune.check.migrate.text import find_in_text, kind_of
from ascendtune.core.errors import InputError, NoVerdict
from ascendtune.core.files import walk
from ascendtune.core.suggest import path_suggestion
from ascendtune.core.units import count_of

_NOT_CODE = {"node_modules", "__pycache__", "site-packages", "dist-packages"}
_LARGEST_BYTES = 4 << 20
"""Larger files are treated as data, whatever their suffix."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Scan:
    files: int
    """Number of files that were read."""
    findings: list[Finding]

    @property
    def verdict(self) -> str:
        failures, warnings = (sum(each.status == status for each in self.findings) for status in ("failure", "warning"))
        looked = f"{count_of(self.files, 'file')} read"
        if not failures and not warnings:
            return f"{looked}: nothing found that does not run on Ascend"
        stays = (
            count_of(failures, "problem") + " on Ascend" if failures else "nothing found that does not run on Ascend"
        )
        return f"{looked}: {stays}" + (f", {count_of(warnings, 'warning')}" if warnings else "")


def scan(path: Path, progress: Progress = lambda what, done, total: None) -> Scan:
    """Scan `path`, a file or a directory.

    Raises:
        InputError: `path` does not exist.
        NoVerdict: no source file was found.
    """
    if not path.exists():
        raise InputError(
            "no such file or directory",
            code="path-missing",
            remedy=path_suggestion(path, "give a file or a directory"),
            where=path,
        )
    hits_by_code: dict[str, list[tuple[Path, Hit]]] = {}
    files = [path] if path.is_file() else list(_files(path))
    read = 0
    for done, file in enumerate(files, 1):
        hits = _hits_of(file)
        read += hits is not None
        for hit in hits or ():
            hits_by_code.setdefault(hit.code, []).append((file, hit))
        progress("files", done, len(files))
    if not read:
        raise NoVerdict(
            "no Python, C++, notebook, script or requirements file was found here, or none that is text",
            code="no-source-files",
            remedy="give a source file, or a directory that contains source files",
            where=path,
        )
    return Scan(read, [_finding(code, hits_by_code[code]) for code in RULES if code in hits_by_code])


def _files(directory: Path) -> Iterator[Path]:
    """All files that may be code, sorted by name, without hidden, built or installed directories."""
    for folder, directories, names in walk(directory):
        directories[:] = sorted(
            name
            for name in directories
            if not name.startswith(".") and name not in _NOT_CODE and not (folder / name / "pyvenv.cfg").exists()
        )
        yield from (folder / name for name in sorted(names) if kind_of(folder / name))


def _hits_of(file: Path) -> list[Hit] | None:
    """The hits in a file; None if it is too large, or neither text nor named like Python."""
    kind = kind_of(file) or "script"
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST_BYTES:
            return None
        content = file.read_bytes()
    except OSError as error:
        return [Hit("not-readable", 1, error.strerror or "cannot be read")]
    if b"\0" in content[:4096]:
        return [Hit("not-readable", 1, "not text")] if kind == "python" else None
    if kind == "python":
        return find_in_python(content)
    text = content.decode("utf-8", errors="replace")
    return _in_notebook(text) if kind == "notebook" else find_in_text(kind, text)


def _in_notebook(text: str) -> list[Hit]:
    """The hits in a notebook; lines are counted over all code cells, shell commands and magics are skipped."""
    try:
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        lines = "\n".join("".join(cell["source"]) for cell in cells).splitlines()
    except (ValueError, KeyError, TypeError):
        return [Hit("not-readable", 1, "not a notebook")]
    python = ["pass" if line.lstrip().startswith(("%", "!", "?")) else line for line in lines]
    return find_in_python("\n".join(python).encode())


def _finding(code: str, places: list[tuple[Path, Hit]]) -> Finding:
    rule = RULES[code]
    where = count_of(len(places), "place")
    if len(files := {file for file, _ in places}) > 1:
        where += f" in {len(files)} files"
    evidence = tuple(
        f"{file}:{hit.line}: {hit.text}" + (" (optional: its absence is caught)" if hit.is_optional else "")
        for file, hit in places
    )
    if rule.status == "ok":
        return ok(code, f"{rule.what}: {where}", evidence=evidence)
    # Code that catches the failed import runs without the module.
    status = "warning" if all(hit.is_optional for _, hit in places) else rule.status
    return Finding(code, status, f"{rule.what}: {where}", remedy=rule.remedy, evidence=evidence)
