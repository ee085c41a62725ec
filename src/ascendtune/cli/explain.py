"""`ascendtune explain`"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.messages import notice, warn
from ascendtune.cli.options import AsJson, LanguageOption
from ascendtune.cli.run_names import complete_run, run_named
from ascendtune.cli.terminal import in_language, paint, print_json_text, width
from ascendtune.core.errors import InputError, NoVerdict
from ascendtune.core.imports import uncollected_imports

if TYPE_CHECKING:
    from ascendtune.check.explain.answer.model_answer import Opinion, Server
    from ascendtune.check.explain.answer.prompt import Question
    from ascendtune.check.explain.explain import Explanation


def explain(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG",
            help="Log files of any ranks, - for stdin, a directory of them, a run or a job.",
            autocompletion=complete_run,
        ),
    ],
    as_json: AsJson = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every cause, remedy and later message.")] = False,
    here: Annotated[
        bool, typer.Option("--here", help="The logs are from this machine: check the state that the remedies refer to.")
    ] = False,
    ask: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="ASCENDTUNE_ASK_URL",
            help="Also ask a language model: excerpts of the logs are sent to this server with OpenAI's API.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model of that server (default: its only one).")
    ] = None,
    question: Annotated[bool, typer.Option("--question", help="Only print the text that --ask would send.")] = False,
    lang: LanguageOption = None,
) -> int:
    """Find the first cause of a failure in logs, and its remedies. Does not need torch.

    \b
    ascendtune explain runs/my-run
    ascendtune explain rank_*.log
    kubectl logs my-pod | ascendtune explain -
    ascendtune explain runs/my-run --ask http://127.0.0.1:8000/v1

    For a run directory, the newest attempt is read; if it ran on this machine, lines `now` show the state of the
    package, port or variable that a remedy names. Exit code 0: no failure, or the run was stopped on request; 1: a
    failure, with or without a known cause; 4: none, and logs are empty, cut off or unreadable. With --question: 0, or
    4.
    """
    with uncollected_imports():
        from ascendtune.check.explain.answer.json_form import as_json as explanation_as_json
        from ascendtune.check.explain.answer.report import as_text, opinion_as_text
        from ascendtune.check.explain.explain import explain as explain_logs

    if model is not None and ask is None:
        raise InputError(
            "--model names a model of the server of --ask", code="option-not-applicable", remedy="add --ask URL"
        )
    server = _server(ask, os.environ) if ask is not None else None
    chosen = in_language(lang, as_json=as_json)
    with chosen:
        names = [run_named(each, or_logs=True) for each in logs]
        explanation = explain_logs(names, is_here=here)
        if question and explanation.is_empty:
            # As with --ask, which then sends nothing.
            warn(explanation.headline())
            return NoVerdict.exit_code
        if question:
            print(_question(explanation, names).text)
            return 0
        if not as_json:
            print(as_text(explanation, columns=width(sys.stdout), paint=paint, everything=everything))
        opinion = None
        if server is not None and not explanation.is_empty:
            opinion = _request_opinion(server, model, _question(explanation, names))
        if as_json:
            print_json_text(explanation_as_json(explanation, opinion))
        elif opinion is not None:
            print("\n" + opinion_as_text(opinion, columns=width(sys.stdout), paint=paint))
    return explanation.exit_code


def _server(url: str, env: Mapping[str, str]) -> Server:
    from ascendtune.check.explain.answer.model_answer import KEY, Server

    return Server(url, env.get(KEY, "").strip())


def _question(explanation: Explanation, names: Sequence[str]) -> Question:
    from ascendtune.check.explain.answer.prompt import question_about

    return question_about(explanation, names)


def _request_opinion(server: Server, model: str | None, question: Question) -> Opinion | None:
    """The model's opinion; None, with a warning, if the server does not answer: the explanation does not need it.

    Raises:
        InputError: the server has several models, and none was named.
    """
    from ascendtune.check.explain.answer.model_answer import KEY
    from ascendtune.core.http import Fault
    from ascendtune.core.progress_bar import ProgressBar

    sys.stdout.flush()
    try:
        with ProgressBar(sys.stderr) as progress:
            names = [model] if model else server.models()
            if len(names) > 1:
                raise InputError(
                    f"{server.host} serves several models: {', '.join(names[:8])}",
                    code="option-missing",
                    remedy=f"name one: --model {names[0]}",
                )
            notice(
                f"{len(question.text):,} characters, secrets and addresses masked, go to {names[0]} on {server.host}"
            )
            progress.show(f"{names[0]} reads the logs")
            return server.ask(names[0], question)
    except Fault as fault:
        hint = f"; if it needs a key: export {KEY}" if fault.status in (401, 403) else ""
        warn(f"the language model on {server.host} gave no answer: {fault.what}{hint}")
        return None
