"""`ascendtune align bisect`"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.messages import confirm
from ascendtune.cli.options import AsJson, LanguageOption, several_of
from ascendtune.cli.run_names import complete_run, run_named
from ascendtune.cli.terminal import in_language, print_findings, width
from ascendtune.core.errors import InputError, NoVerdict, RecipeError, translated_disk_errors
from ascendtune.core.suggest import known_names
from ascendtune.core.terminal_text import wrapped

if TYPE_CHECKING:
    from ascendtune.check.align.bisect import Swap, SwapTrial, TrainedRecipe
    from ascendtune.check.align.training_record import TrainingRecord


_INGREDIENTS = "attention,kernels,dtype,optimizer,accumulate"


def bisect(
    reference: Annotated[
        Path, typer.Argument(help="A run directory.", show_default=False, autocompletion=complete_run)
    ],
    candidate: Annotated[
        Path,
        typer.Argument(
            help="A run that diverges from it and can be trained on this machine.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ],
    switch: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Ingredients to swap.", autocompletion=several_of(lambda: _INGREDIENTS.split(","))
        ),
    ] = _INGREDIENTS,
    directory: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Keep the trainings here (default: temporary).")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Train without asking.")] = False,
    as_json: AsJson = False,
    lang: LanguageOption = None,
) -> int:
    """Find the ingredient of the recipe that makes two runs diverge, by training again.

    \b
    ascendtune align bisect runs/gpu runs/npu
    ascendtune align bisect runs/gpu runs/npu --switch dtype,optimizer --yes

    Trains the candidate again up to the step at which it diverges: once unchanged, then with one ingredient of the
    reference at a time. If no single ingredient makes it agree, all together are tried, then pairs. Shows the planned
    trainings first, and asks. Neither run is changed. Exit code 0: the runs agree; 1: the cause is found; 4: it is not.
    """
    with in_language(lang, as_json=as_json):
        return _bisected(reference, candidate, switch, directory, yes=yes, as_json=as_json)


def _bisected(
    reference: Path, candidate: Path, switch: str, directory: Path | None, *, yes: bool, as_json: bool
) -> int:
    """Print the result, and return the exit code."""
    from ascendtune.check.align.bisect import INGREDIENTS, TrainedRecipe, find_culprits, findings_of, swaps_between
    from ascendtune.check.align.bisect import verdict as verdict_of
    from ascendtune.check.align.language import say
    from ascendtune.check.align.loss_noise import expected_noise
    from ascendtune.check.align.stages import compare_trainings
    from ascendtune.check.align.training_record import read_training_record
    from ascendtune.check.align.verdict import verdict
    from ascendtune.core import log

    log.set_up()
    names = known_names(switch, INGREDIENTS, "ingredient")
    one, other = (read_training_record(Path(run_named(each))) for each in (reference, candidate))
    _require_trainable(one, other)
    comparison = compare_trainings(one, other, expected_noise(one, other))
    sentence = verdict(comparison, one, other)
    step = comparison.decisive_step
    if comparison.divergence is None or step is None:
        print_findings(sentence, [], as_json=as_json)
        return 0
    recipes = TrainedRecipe.of(one), TrainedRecipe.of(other)
    swaps = swaps_between(*recipes, names)
    possible = [each for each in swaps if not each.obstacle]
    if not possible:
        raise NoVerdict(
            f"{sentence}; nothing can be swapped: {'; '.join(f'{each.name}: {each.obstacle}' for each in swaps)}",
            code="nothing-to-swap",
            remedy="compare data, weights and machines: `ascendtune align` shows the differences",
        )
    with _place(directory, one, other) as place:
        trainer = _Trainer(one, other, recipes, step, _dumped(one, other, step), place)
        _show_plan(sentence, trainer, swaps, None if directory is None else place)
        if not confirm(say("Train these?"), yes=yes):
            raise typer.Abort
        if trainer.agrees(()) is not False:
            raise NoVerdict(
                f"trained again without a swap, the runs do not diverge: {trainer.trials[0].outcome}",
                code="not-reproduced",
                remedy="use the same kind and number of devices as the candidate; a device that errs shows up in "
                "`ascendtune doctor --deep`",
                where=directory,
            )
        guilty = find_culprits([each.name for each in possible], trainer.agrees)
    found, trials = verdict_of(guilty, step), trainer.trials[1:]
    code = 1 if guilty else 4
    print_findings(
        found,
        findings_of(trials, swaps, guilty),
        as_json=as_json,
        everything=True,
        exit_code=code,
        step=step,
        comparison=sentence,
        culprits=guilty,
        trials=[asdict(each) for each in trials],
        changes={each.name: dict(each.changes) for each in possible},
        not_swapped={each.name: each.obstacle for each in swaps if each.obstacle},
        directory=str(directory) if directory else None,
    )
    return code


@dataclass
class _Trainer:
    """Trains the candidate again, and compares it with the reference.

    Attributes:
        recipes: recipes of the reference and the candidate.
        step: the last step to train.
        dump_steps: steps whose tensors are compared.
        directory: directory for a recipe, a log and a run directory of each trial.
    """

    reference: TrainingRecord
    candidate: TrainingRecord
    recipes: tuple[TrainedRecipe, TrainedRecipe]
    step: int
    dump_steps: Sequence[int]
    directory: Path
    trials: list[SwapTrial] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        return self.recipes[1].ranks or 1

    def agrees(self, swapped: tuple[str, ...]) -> bool | None:
        """Whether the candidate with these ingredients agrees; None if it cannot be trained."""
        from ascendtune.check.align.bisect import SwapTrial

        trial = SwapTrial(swapped, *self._train(swapped))
        self.trials.append(trial)
        return trial.agrees

    def _train(self, swapped: tuple[str, ...]) -> tuple[bool | None, str]:
        from ascendtune.check.align.bisect import trial_recipe
        from ascendtune.check.align.language import say
        from ascendtune.cli.child_training import train_again
        from ascendtune.core import log
        from ascendtune.core.files import write_atomically

        name = "+".join(swapped) or "nothing"
        file, output, run = (self.directory / f"{name}{end}" for end in (".yaml", ".log", ""))
        try:
            recipe = trial_recipe(*self.recipes, swapped, last_step=self.step, dump_steps=self.dump_steps, run_dir=run)
        except RecipeError as error:
            return None, say("the recipe does not permit it: {why}", why=error.what)
        write_atomically(file, recipe.to_yaml().encode())
        ingredients = say(" and ").join(swapped) or say("nothing")
        log.say(say("training up to step {step}: {ingredients} swapped", step=self.step, ingredients=ingredients))
        exit_code = train_again(self.candidate.path, file, ranks=self.ranks, log=output)
        try:
            return self._judged(run, output, exit_code)
        finally:
            _remove_weights(run)

    def _judged(self, run: Path, output: Path, exit_code: int) -> tuple[bool | None, str]:
        from ascendtune.check.align.language import say
        from ascendtune.check.align.loss_noise import expected_noise
        from ascendtune.check.align.stages import compare_trainings
        from ascendtune.check.align.training_record import read_training_record
        from ascendtune.check.align.verdict import verdict
        from ascendtune.check.recorded_cause import cause_in_words
        from ascendtune.cli.child_training import error_in
        from ascendtune.core.rundir import RunDir

        cause = RunDir(run).read_if_any().get("exit_cause")
        if cause and cause.get("code") == "loss-not-finite":
            return False, cause_in_words(cause).what
        if exit_code:
            why = cause_in_words(cause).what if cause else error_in(output)
            return None, say("it could not be trained: {why}", why=why)
        side = replace(read_training_record(run), name=self.candidate.name)
        dumped = side.dump is not None and self.step in side.dump.files
        if (RunDir(run).last_step() or 0) < self.step and not dumped:
            return None, say("its training ended before step {step}", step=self.step)
        comparison = compare_trainings(self.reference, side, expected_noise(self.reference, side))
        return comparison.divergence is None, verdict(comparison, self.reference, side)


def _require_trainable(reference: TrainingRecord, candidate: TrainingRecord) -> None:
    """Raise unless both are runs of ours, and the candidate can be trained again from its start."""
    from ascendtune.core.ownership import require_own
    from ascendtune.core.rundir import RunDir

    for side in (reference, candidate):
        if side.is_foreign:
            raise InputError(
                f"{side.name} ({side.kind}) has no recipe with an ingredient that could be swapped",
                code="not-a-run-directory",
                remedy="give two directories that `ascendtune train` made",
                where=side.path,
            )
    recipe = candidate.recipe or {}
    if recipe.get("checkpoint.resume") not in (None, "auto", "never"):
        raise InputError(
            "the candidate started from a checkpoint of another run",
            code="checkpoint-of-another-run",
            remedy="train it from its model with checkpoint.resume=never, and give that run",
            where=candidate.path,
        )
    # It names the model and the data to train on, and code that may be run.
    run = RunDir(candidate.path)
    require_own(run.path, run.recipe, run.run_json)


def _dumped(reference: TrainingRecord, candidate: TrainingRecord, step: int) -> list[int]:
    """The steps up to `step` that both sides have dumped."""
    if reference.dump is None or candidate.dump is None:
        return []
    return sorted(each for each in reference.dump.files.keys() & candidate.dump.files.keys() if each <= step)


@contextmanager
def _place(directory: Path | None, *sides: TrainingRecord) -> Iterator[Path]:
    """The absolute path of an empty directory outside both runs; a temporary one is removed at the end."""
    from tempfile import TemporaryDirectory

    if directory is None:
        with TemporaryDirectory(prefix="ascendtune-bisect-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary).resolve()
        return
    place = directory.resolve()
    if any(place.is_relative_to(side.path.resolve()) for side in sides):
        raise InputError(
            "this directory is inside one of the runs, which must not change",
            code="output-overwrites-input",
            remedy="give another directory with --to",
            where=directory,
        )
    with translated_disk_errors(place, "making the directory of the trainings"):
        place.mkdir(parents=True, exist_ok=True)
        is_empty = not any(place.iterdir())
    if not is_empty:
        raise InputError(
            "the directory is not empty",
            code="directory-not-empty",
            remedy="give another directory with --to",
            where=directory,
        )
    yield place


def _show_plan(sentence: str, trainer: _Trainer, swaps: Sequence[Swap], kept_at: Path | None) -> None:
    """Print the planned trainings on stderr."""
    from ascendtune.check.align.bisect import most_trials
    from ascendtune.check.align.language import say

    possible = [each for each in swaps if not each.obstacle]
    least, most = 1 + len(possible), 1 + most_trials(len(possible))
    plan = say(
        "{candidate} is trained again from its start; steps: {steps}, devices: {devices}, trainings: {times}",
        candidate=trainer.candidate.name,
        steps=trainer.step,
        devices=trainer.ranks,
        times=say("{least} to {most}", least=least, most=most) if most > least else least,
    )
    place = (
        say("kept in {directory}", directory=kept_at)
        if kept_at
        else say("in {directory}, which is removed at the end", directory=trainer.directory)
    )
    lines = [
        sentence,
        f"{plan}; {place}",
        f"  {say('nothing swapped')}",
        *(f"  {each.name}: {each.text}" for each in possible),
        *(say("not swapped: {why}", why=f"{each.name}: {each.obstacle}") for each in swaps if each.obstacle),
    ]
    if most > least:
        lines.append(say("if none of them explains it: all together, then pairs"))
    for line in lines:
        print(wrapped(line, width(sys.stderr)), file=sys.stderr)
    sys.stderr.flush()


def _remove_weights(run: Path) -> None:
    """Remove files that are not compared, because each trial has its own model."""
    import shutil

    from ascendtune.core.rundir import RunDir

    for directory in (RunDir(run).model, RunDir(run).checkpoints):
        shutil.rmtree(directory, ignore_errors=True)
