"""The existing path that somebody probably meant."""

from __future__ import annotations

import difflib
from pathlib import Path


def nearest_path(missing: Path) -> Path | None:
    """The entry most like the first part of `missing` that does not exist, or None when nothing is alike."""
    part = missing
    while not part.parent.is_dir():
        if part.parent == part:
            return None
        part = part.parent
    try:
        names = [entry.name for entry in part.parent.iterdir()]
    except OSError:
        return None
    # A forgotten suffix is the commonest slip, and a short name with a suffix is not "close" by letters.
    same_stem = sorted(name for name in names if name.split(".")[0] == part.name.split(".")[0])
    close = same_stem or difflib.get_close_matches(part.name, names, n=1)
    return part.parent / close[0] if close else None
