"""Options of several commands, defined once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from ascendtune.cli.run_names import complete_key, complete_weights


def one_of(*words: str) -> Callable[[str], list[str]]:
    """A completion function for these words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def several_of(words: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """A completion function for a list of these words, separated by commas: completes the last one."""

    def complete(incomplete: str) -> list[str]:
        given, comma, begun = incomplete.rpartition(",")
        return [given + comma + word for word in words() if word.startswith(begun)]

    return complete


def complete_template(incomplete: str) -> list[str]:
    from ascendtune.data.spec import NAMED

    return [name for name in ("auto", *NAMED) if name.startswith(incomplete)]


RecipeFile = Annotated[Path, typer.Argument(help="The recipe, in native or LLaMA-Factory form.", show_default=False)]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print only results, warnings and errors.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print notices in full.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

LanguageOption = Annotated[
    str | None,
    typer.Option(
        "--lang",
        metavar="en|zh",
        help="Language of the output (default: as the locale).",
        autocompletion=one_of("en", "zh"),
    ),
]

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Keys to change, e.g. optim.learning_rate=1e-4.", autocompletion=complete_key
    ),
]

# Devices and hosts.
MOST_PROCESSES = 1024
"""Per machine: more than any machine has devices; on a CPU more processes would fill its memory."""
DeviceCount = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=MOST_PROCESSES, help="Number of devices (default: all visible; on CPU 1)."),
]
DeviceIds = Annotated[str | None, typer.Option(metavar="0,1", help="Only these devices.")]
Hosts = Annotated[
    str | None,
    typer.Option(
        metavar="HOSTS", help="Hosts to start on over ssh, host1,host2 or a host file (default: this machine)."
    ),
]
MinNodes = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Continue while at least N of the hosts are reachable.")
]
MaxRestarts = Annotated[
    int,
    typer.Option(metavar="N", min=0, help="Restart after a failure up to N times, from the newest checkpoint if any."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the commands that would run, and exit.")]
Detach = Annotated[bool, typer.Option("--detach", help="Run in the background after the preparation.")]

# Ranks of `comm test` and `comm bench`.
RankCount = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, max=MOST_PROCESSES, help="Number of devices (default: all visible; on CPU 2 ranks)."
    ),
]
RankTimeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=1, help="Time limit for a rank that waits for another.")
]
RankDirectory = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Directory for notes and logs of ranks (default: temporary, kept on failure)."),
]

# Generation.
RunOrModel = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_MODEL",
        help="A run, a checkpoint (run@120, run@best), a model directory or a hub id.",
        show_default=False,
        autocompletion=complete_weights,
    ),
]
SystemMessage = Annotated[str | None, typer.Option(help="System message.")]
Temperature = Annotated[float, typer.Option(min=0, help="Sampling temperature; 0 takes the most likely token.")]
TopP = Annotated[
    float, typer.Option(min=0, max=1, help="Sample from the most likely tokens with this total probability.")
]
SamplingSeed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed for a temperature above 0.")]
ChatTemplate = Annotated[
    str, typer.Option(help="Chat template, as data.template in a recipe.", autocompletion=complete_template)
]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run Python code in the model directory.")]
