"""The table of docs/guide/replaced.md."""

from __future__ import annotations

import re
from pathlib import Path

_PAGE = Path(__file__).parents[1] / "docs/guide/replaced.md"


def rows() -> list[tuple[str, str]]:
    """Command and last column, what a test needs to run it, of each row."""
    return re.findall(r"\| `(ascendtune [^`]+)` \| ([^|]+) \|$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
