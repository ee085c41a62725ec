"""Options that several commands take: said once, so that they mean and say the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# Where processes run.
MOST_PROCESSES = 1024
"""On one machine. None has as many devices; on a CPU more would only fill its memory."""
DeviceCount = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=MOST_PROCESSES, help="How many devices (default: all visible; on CPU 1)."),
]
DeviceIds = Annotated[str | None, typer.Option(metavar="0,1", help="Only these devices.")]
Hosts = Annotated[
    str | None,
    typer.Option(metavar="HOSTS", help="Hosts to start on over ssh, host1,host2 or a host file (default: here)."),
]
MinNodes = Annotated[int | None, typer.Option(metavar="N", min=1, help="Go on while at least N of the hosts answer.")]
MaxRestarts = Annotated[
    int, typer.Option(metavar="N", min=0, help="Start again after a failure, from the newest checkpoint if any.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be started, and stop.")]
Detach = Annotated[bool, typer.Option("--detach", help="Run in the background, once all is ready to start.")]

# Ranks that only talk to each other.
RankCount = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, max=MOST_PROCESSES, help="How many devices (default: all visible; on CPU 2 ranks)."
    ),
]
RankTimeout = Annotated[float, typer.Option(metavar="SECONDS", min=1, help="How long a rank waits for another.")]
RankDirectory = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="A new place for notes and logs of ranks (default: one that goes when all went well)."
    ),
]

# How a model answers.
SystemMessage = Annotated[str | None, typer.Option(help="System message.")]
Temperature = Annotated[float, typer.Option(min=0, help="0 takes the likeliest token.")]
TopP = Annotated[float, typer.Option(min=0, max=1, help="Draw from this share of likeliness.")]
SamplingSeed = Annotated[int, typer.Option(min=0, help="For a temperature above 0.")]
ChatTemplate = Annotated[str, typer.Option(help="Chat template, as data.template in a recipe.")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run the model's own code.")]
