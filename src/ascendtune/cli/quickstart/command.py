"""`ascendtune quickstart`"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from ascendtune.cli.quickstart.skill import (
    PROMPT_PREFIX,
    QUESTIONS_FILE,
    TRAINING_FILE,
    Skill,
    answer,
    count_right,
    question,
)
from ascendtune.cli.terminal import colour, table
from ascendtune.core import process
from ascendtune.core.errors import CheckFailed, InputError, translated_disk_errors
from ascendtune.core.interrupts import stop_signals
from ascendtune.core.units import count_of, format_count

_ENOUGH = 0.8
"""Share of right answers above which the training counts as successful."""
_LOOK_SECONDS = 0.2
_SAMPLES = 4
_LONGEST_ANSWER = 12
"""Tokens generated, and characters shown."""


def quickstart(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Recipe keys to change, as for `ascendtune train`."),
    ] = None,
    directory: Annotated[Path, typer.Option(help="Directory for all files.")] = Path("quickstart"),
) -> None:
    """Train a small model on a small task, and compare its answers; takes a minute or two, needs no network.

    \b
    ascendtune quickstart
    ascendtune quickstart optim.max_steps=100

    Creates a model with random weights and a data set, asks the model 50 questions, trains it with `ascendtune train`,
    and asks again. All files are kept. After an interruption the same command resumes from the last checkpoint.
    """
    from ascendtune.cli.quickstart.base_model import make_base_model
    from ascendtune.recipe.recipe import Recipe

    base, recipe = directory / "base-model", directory / "recipe.yaml"
    skill, model = Skill.make(), make_base_model()
    files = {base / name: content for name, content in model.files.items()}
    files |= {directory / name: content for name, content in skill.files.items()}
    _write({**files, recipe: recipe_text(directory).encode()})
    runs = Recipe.load(recipe, overrides or []).run_directory().parent

    _headline("A small model learns to sort the letters of a word")
    print(f"{base}: {format_count(model.parameters)} random weights, tokenizer")
    print(f"{directory / TRAINING_FILE}: {count_of(len(skill.training), 'row')}")
    print(f"{directory / QUESTIONS_FILE}: {len(skill.questions)} words that are in no row")
    print(f"{recipe}:\n\n{textwrap.indent(recipe.read_text('utf-8'), '    ')}")

    _headline("Before training")
    before = _answers_of(base, skill.questions)

    words = ["train", str(recipe), "--devices", "1", *(overrides or [])]
    _headline(f"Training: ascendtune {shlex.join(words)}")
    exit_code = _run([sys.executable, "-P", "-m", "ascendtune", *words])
    if exit_code:
        raise typer.Exit(exit_code)
    run = _newest(runs)

    _headline("After training")
    after = _answers_of(run, skill.questions)
    _show_samples(skill.questions, before, after)
    _show_next(run)
    if count_right(skill.questions, after) < _ENOUGH * len(skill.questions):
        raise CheckFailed(
            f"the model did not learn the task: {_ENOUGH:.0%} right answers are expected",
            code="too-few-right-answers",
            remedy="look at the plot of the loss; train longer, or revert your changes to the recipe",
            where=run,
        )


def _write(files: Mapping[Path, bytes]) -> None:
    """Write missing files; a file with other content is an error."""
    from ascendtune.core.files import write_atomically

    existing = [path for path in files if path.exists()]
    for path in existing:
        if not path.is_file() or path.read_bytes() != files[path]:
            raise InputError(
                f"{path.name} exists with other content than quickstart writes",
                code="path-exists",
                remedy="give a new directory with --directory; run a recipe that you changed with `ascendtune train`",
                where=path,
            )
    for path in files.keys() - existing:
        with translated_disk_errors(path.parent, "writing the quickstart's files"):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, files[path])


def _answers_of(weights: Path, words: Sequence[str]) -> list[str]:
    from ascendtune.infer.engine import load

    print(f"asking {weights} {len(words)} questions ...", flush=True)
    answers = load(weights).generate([question(word) for word in words], _LONGEST_ANSWER, batch_size=len(words))
    score = count_right(words, answers)
    result = f"{score} of {len(words)} answers are right ({score / len(words):.0%})"
    print(colour(result, "green" if score >= _ENOUGH * len(words) else "bold", sys.stdout), flush=True)
    return answers


def _run(argv: Sequence[str]) -> int:
    """Run a command in this terminal, pass signals on to it, and wait; returns the exit code."""
    sys.stdout.flush()
    child = process.Child(argv, os.environ)
    with _signals_passed_to(child):
        # torch's threads exist by now, and the kernel may deliver the signal to one of them: the main thread, which
        # runs the handler, must wake up before the child exits.
        while (exit_code := child.wait(_LOOK_SECONDS)) is None:
            pass
    return exit_code if exit_code >= 0 else 128 - exit_code


@contextmanager
def _signals_passed_to(child: process.Child) -> Iterator[None]:
    def pass_on(number: int, frame: FrameType | None) -> None:
        # A closed terminal is handled like a scheduler that reclaims the machine.
        child.signal(signal.SIGTERM if number == signal.SIGHUP else signal.Signals(number))

    old = {number: signal.signal(number, pass_on) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _newest(runs: Path) -> Path:
    from ascendtune.cli.runs import find_runs

    return find_runs(runs)[-1].path


def _show_samples(words: Sequence[str], before: Sequence[str], after: Sequence[str]) -> None:
    rows = [
        (f"{PROMPT_PREFIX}{word}", _cut(first), _cut(second), "right" if second == answer(word) else "wrong")
        for word, first, second in zip(words, before, after, strict=True)
    ]
    first, rest = rows[: _SAMPLES - 1], rows[_SAMPLES - 1 :]
    # A wrong answer, if any, is more informative than another right one.
    last = next((row for row in rest if row[-1] == "wrong"), rest[0])
    print("\n" + table(("question", "before", "after", ""), [*first, last]))


def _show_next(run: Path) -> None:
    _headline("Files")
    print(f"run directory   {run}\nloss plot       {run / 'loss.png'}\nfinal weights   {run / 'model'}")
    _headline("Next steps")
    program, place = _command("ascendtune"), shlex.quote(str(run))
    for what, command in (
        ("chat with it: a word, or Sort the letters: WORD", f"{program} chat {place}"),
        ("look at the run", f"{program} runs show {place}"),
        ("show its curves", f"{_command('tensorboard')} --logdir {shlex.quote(str(run.parent))}"),
        ("write a recipe for your own model and data", f"{program} init"),
    ):
        print(f"{what}\n  {colour(command, 'bold', sys.stdout)}")


def _command(name: str) -> str:
    """The shell command for `name`: its name if the shell finds the one beside this Python, else its path."""
    own = Path(sys.executable).parent / name
    program = shutil.which(name)
    if not own.is_file() or (program and Path(program).resolve() == own.resolve()):
        return name
    return shlex.quote(os.path.relpath(own) if own.is_relative_to(Path.cwd()) else str(own))


def _headline(text: str) -> None:
    print(f"\n{colour(text, 'bold', sys.stdout)}", flush=True)


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_ANSWER else f"{line[: _LONGEST_ANSWER - 1]}…"


_TEXT = """\
name: sort-letters
run_dir: {runs}

model:
  path: {model}

data:
  train: {data}
  max_length: 1024  # short rows are packed up to it

optim:
  learning_rate: 2e-3  # high: the weights are random
  scheduler: cosine
  min_learning_rate_ratio: 0.05
  warmup_steps: 50
  beta2: 0.98
  max_steps: 450

precision: fp32
"""


def recipe_text(directory: Path) -> str:
    """The recipe for the quickstart's files in `directory`."""
    places = {"runs": "runs/{name}", "model": "base-model", "data": "train.jsonl"}
    return _TEXT.format(**{word: _scalar(str(directory / place)) for word, place in places.items()})


def _scalar(text: str) -> str:
    """`text` as YAML: plain if that is safe, else quoted."""
    return text if re.fullmatch(r"[\w./][\w./{}-]*", text) else json.dumps(text)
