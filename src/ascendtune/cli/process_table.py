"""One line a process: what is known of it, and its command at the end, as long as the terminal is wide."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ascendtune.cli.terminal import table, width


def process_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], commands: Sequence[str], *, right: Sequence[str]
) -> str:
    """`table` with a last column that is cut where the terminal ends; what is piped is never cut."""
    lines = table(header, rows, right=right).splitlines()
    longest = max(map(len, lines))
    limit = width(sys.stdout)
    return "\n".join(
        f"{line.ljust(longest)}  {command}"[:limit] for line, command in zip(lines, ("command", *commands), strict=True)
    )
