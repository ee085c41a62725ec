"""git, as a user calls it, in repositories that tests make."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(place: Path, *words: str) -> str:
    """The output of a git command in `place`."""
    return subprocess.run(["git", "-C", str(place), *words], check=True, capture_output=True, text=True).stdout.strip()


def commit(place: Path, **files: str) -> str:
    """Write NAME.txt for each, and commit everything; the commit."""
    for name, content in files.items():
        (place / f"{name}.txt").write_text(content)
    git(place, "add", "-A")
    git(place, "commit", "-qm", " ".join(files))
    return git(place, "rev-parse", "HEAD")
