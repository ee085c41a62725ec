"""What torchrun says at the end: which rank failed first, and how its process ended."""

from __future__ import annotations

import re
from dataclasses import dataclass

HEADER = "Root Cause (first observed failure)"
_FIELD = re.compile(r"\b(host|rank|exitcode)\s*: (\S+)")


@dataclass(frozen=True)
class RootCause:
    rank: int | None
    host: str | None
    exit_code: int | None


def root_cause(lines: list[str]) -> RootCause | None:
    """Read the lines from the header on."""
    found: dict[str, str] = {}
    for line in lines[1:]:
        if match := _FIELD.search(line):
            found.setdefault(match[1], match[2])
    if not found:
        return None
    return RootCause(_number(found.get("rank")), found.get("host"), _number(found.get("exitcode")))


def _number(text: str | None) -> int | None:
    return int(text) if text and text.lstrip("-").isdigit() else None
