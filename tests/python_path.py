"""PYTHONPATH of the processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path


def python_path(*first: Path) -> str:
    """These directories, then those of this process: with a source that PYTHONPATH names, children use it, too."""
    return os.pathsep.join(filter(None, [*map(str, first), os.environ.get("PYTHONPATH")]))
