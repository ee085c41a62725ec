"""`ascendtune align tasks`"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ascendtune.cli.options import AsJson, LanguageOption
from ascendtune.cli.terminal import in_language, print_findings


def tasks(
    reference: Annotated[Path, typer.Argument(help="Scores of the reference model: a file of lm-eval.")],
    candidate: Annotated[Path, typer.Argument(help="Scores of the model to be judged.")],
    as_json: AsJson = False,
    lang: LanguageOption = None,
) -> None:
    """Report whether two models' benchmark scores are equal within sampling error.

    \b
    ascendtune align tasks gpu/results_2026-01-01.json npu/results_2026-01-02.json
    ascendtune align tasks samples_gpu.jsonl samples_npu.jsonl

    Reads results_*.json and samples_*.jsonl of lm-eval, and JSON such as {"task": [1, 0, 1]}. With the items of both
    models the difference is paired (exact for right and wrong answers, else bootstrap); with totals alone its interval
    is wider. Exit code 0: equal; 1: not equal; 4: nothing to compare.
    """
    from ascendtune.check.align.tasks import compare_tasks, findings_of, read_scores, verdict
    from ascendtune.check.finding import exit_code

    chosen = in_language(lang, as_json=as_json)
    sides = read_scores(reference), read_scores(candidate)
    compared = compare_tasks(*sides)
    with chosen:
        findings = findings_of(compared, *sides)
        each_task = [asdict(each) for each in compared]
        print_findings(verdict(findings), findings, as_json=as_json, everything=True, tasks=each_task)
    raise typer.Exit(exit_code(findings))
