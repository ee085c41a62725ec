"""`ascendtune explain`"""

from __future__ import annotations

from typing import Annotated

import typer

from ascendtune.cli.options import AsJson, LanguageOption
from ascendtune.cli.run_names import complete_run, run_named


def explain(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG",
            help="Log files of any ranks, - for stdin, or a directory of them or a run.",
            autocompletion=complete_run,
        ),
    ],
    as_json: AsJson = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every cause, remedy and later message.")] = False,
    here: Annotated[
        bool, typer.Option("--here", help="The logs are of this machine: check on it what the remedies name.")
    ] = False,
    lang: LanguageOption = None,
) -> int:
    """Find the first cause of a failure in logs, and say what to do. Needs no torch.

    \b
    ascendtune explain runs/my-run
    ascendtune explain rank_*.log
    kubectl logs my-pod | ascendtune explain -

    For a run directory, the newest attempt is read; if it ran on this machine, lines `now` give the state of the
    package, port or variable that a remedy names. Exit code 0: no failure, or the run was stopped on request; 1: a
    failure, with or without a known cause; 4: the logs are empty.
    """
    import os
    import sys

    from ascendtune.check.explain.explain import as_json as explanation_as_json
    from ascendtune.check.explain.explain import explain as explain_logs
    from ascendtune.check.explain.report import as_text
    from ascendtune.cli.terminal import paint, width
    from ascendtune.core import language
    from ascendtune.core.errors import NoVerdict

    # Programs that read JSON get English, unless they ask for something else.
    chosen = language.choose(lang, {} if as_json else os.environ, sys.stdout.encoding)
    with language.using(chosen):
        explanation = explain_logs([run_named(each) for each in logs], is_here=here)
        if as_json:
            print(explanation_as_json(explanation))
        else:
            print(as_text(explanation, columns=width(sys.stdout), paint=paint, everything=everything))
    if explanation.is_empty:
        return NoVerdict.exit_code
    return 0 if explanation.is_healthy else 1
