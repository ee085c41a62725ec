"""One line a process: what is known of it, and its command at the end, as long as the terminal is wide."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ascendtune.cli.terminal import table, width


def process_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], commands: Sequence[str], *, right: Sequence[str]
) -> str:
    """`table` with a last column; on a terminal without the folder of the program, and cut where the terminal ends."""
    lines = table(header, rows, right=right).splitlines()
    longest = max(map(len, lines))
    limit = width(sys.stdout)
    if limit is not None:
        commands = [_without_folder(command) for command in commands]
    return "\n".join(
        f"{line.ljust(longest)}  {command}"[:limit] for line, command in zip(lines, ("command", *commands), strict=True)
    )


def _without_folder(command: str) -> str:
    program, blank, words = command.partition(" ")
    return program.rpartition("/")[2] + blank + words
