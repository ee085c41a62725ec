"""`ascendtune align`"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ascendtune.cli.options import AsJson, LanguageOption
from ascendtune.cli.run_names import complete_run, run_named
from ascendtune.cli.terminal import in_language, print_findings, print_json


def align(
    reference: Annotated[
        Path, typer.Argument(help="A run directory, or the log of another trainer.", autocompletion=complete_run)
    ],
    candidate: Annotated[
        Path, typer.Argument(help="The same for the training to be judged.", autocompletion=complete_run)
    ],
    noise_runs: Annotated[
        list[Path] | None,
        typer.Option(help="Repetition of the reference, to measure the noise (may be given several times)."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page with curves, stages and tensors.")
    ] = None,
    as_json: AsJson = False,
    lang: LanguageOption = None,
) -> None:
    """Report whether two trainings agree, or at which step and in which module they diverge.

    \b
    ascendtune align compare runs/gpu runs/npu
    ascendtune align runs/gpu runs/npu
    ascendtune align trainer_state.json runs/npu --report align.html

    Compares recipe, data, weights, the first loss, the first gradient, the first updates and the whole curve, in this
    order; if both sides dumped tensors (train --dump-steps 1-3), names the first module, gradient or update that
    differs. Also reads logs of transformers' Trainer (trainer_state.json), LLaMA-Factory (trainer_log.jsonl),
    TensorBoard and CSV, and dumps of msprobe. Exit code 0: they agree; 1: they differ; 4: they cannot be compared.
    """
    from ascendtune.check.align.loss_noise import expected_noise, measured_noise
    from ascendtune.check.align.report import write_report
    from ascendtune.check.align.stages import compare_trainings, exit_code, require_repetitions
    from ascendtune.check.align.tensor_findings import difference_as_json
    from ascendtune.check.align.training_record import read_training_record
    from ascendtune.check.align.verdict import verdict
    from ascendtune.core.directories import require_place_for

    chosen = in_language(lang, as_json=as_json)
    if report:
        require_place_for(report)
    one, other = (read_training_record(Path(run_named(each))) for each in (reference, candidate))
    if one.name == other.name:
        one, other = (replace(side, name=str(side.path)) for side in (one, other))
    noise = expected_noise(one, other)
    if noise_runs:
        repeats = [read_training_record(Path(run_named(path))) for path in noise_runs]
        require_repetitions(one, repeats)
        noise = measured_noise(one, repeats, noise)
    with chosen:
        comparison = compare_trainings(one, other, noise)
        sentence = verdict(comparison, one, other)
        if report:
            write_report(report, comparison, one, other)
        if not as_json:
            print_findings(sentence, comparison.findings, everything=True)
    if as_json:
        facts: dict[str, Any] = {
            "verdict": sentence,
            "exit_code": exit_code(comparison),
            "aligned": comparison.divergence is None,
            "stage": comparison.divergence.code if comparison.divergence else None,
            "step": comparison.step,
            "place": difference_as_json(comparison.dumps.place) if comparison.dumps.place else None,
            "records": {
                "compared": len(comparison.pair.steps),
                "reference_alone": len(comparison.pair.reference_alone),
                "candidate_alone": len(comparison.pair.candidate_alone),
            },
            "mean_difference": comparison.mean_difference,
            "noise": {"loss": noise.loss, "grad_norm": noise.grad_norm, "basis": str(noise.basis)},
            "findings": [each.as_json() for each in comparison.findings],
        }
        print_json(facts)
    raise typer.Exit(exit_code(comparison))
