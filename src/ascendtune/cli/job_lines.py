"""How lines of a job's logs are shown: with the rank in front, in a colour of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress

from ascendtune.cli.terminal import colour
from ascendtune.core.terminal_text import plain
from ascendtune.job.follow import Line

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def show(lines: Iterable[Line]) -> None:
    """Print them on stdout as they come. What the job itself says stands without a prefix."""
    for line in lines:
        shown = plain(line.text)
        if line.rank is None:
            print(shown, flush=True)
        else:
            prefix = f"[rank {line.rank}]"
            # A worker of ours names its rank itself.
            text = shown.removeprefix(f"{prefix} ")
            print(f"{colour(prefix, _COLOURS[line.rank % len(_COLOURS)], sys.stdout)} {text}", flush=True)


def show_while_read(lines: Iterable[Line]) -> None:
    """`show` beside a job that goes on when nobody reads any more, as in `| head`: its logs keep everything."""
    with suppress(BrokenPipeError):
        show(lines)
