"""A traceback as Python writes it."""

from __future__ import annotations

PACKAGES = "/v/lib/python3.11/site-packages"


def written_trace(error: str, *frames: tuple[str, str]) -> str:
    """The traceback of `error`, whose frames are files and their lines of code, the outermost first."""
    rows = "".join(f'  File "{file}", line 7, in rise\n    {code}\n' for file, code in frames)
    return f"Traceback (most recent call last):\n{rows}{error}\n"
