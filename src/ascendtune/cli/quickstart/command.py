"""`ascendtune quickstart`"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from ascendtune.cli.quickstart.skill import ASKED, QUESTIONS_FILE, TRAINING_FILE, Skill, answer, question, right
from ascendtune.cli.terminal import colour
from ascendtune.core import process

_ENOUGH = 0.8
"""Share of right answers from which the skill counts as learnt."""
_LOOK_SECONDS = 0.2
_SAMPLES = 4
_LONGEST_ANSWER = 12
"""Tokens, and characters that are shown."""


def quickstart(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Recipe keys to change, as for `ascendtune train`."),
    ] = None,
    directory: Annotated[Path, typer.Option(help="Where everything is written.")] = Path("quickstart"),
) -> None:
    """Teach a small model a small skill, and see what it learnt; takes a minute or two, needs no network.

    \b
    ascendtune quickstart
    ascendtune quickstart optim.max_steps=100

    Makes a model with random weights and a data set, asks the model 50 questions, trains it with `ascendtune train`,
    and asks again. Everything stays to be looked at; interrupted, the same command goes on from the last checkpoint.
    """
    from ascendtune.cli.quickstart.base_model import make_base_model
    from ascendtune.core.errors import CheckFailed
    from ascendtune.core.units import count_of, format_count
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
    print(f"{recipe}:\n\n{_indented(recipe.read_text())}")

    _headline("Before training")
    before = _ask(base, skill.questions)

    words = ["train", str(recipe), "--devices", "1", *(overrides or [])]
    _headline(f"Training: ascendtune {shlex.join(words)}")
    exit_code = _run([sys.executable, "-m", "ascendtune", *words])
    if exit_code:
        raise typer.Exit(exit_code)
    run = _newest(runs)

    _headline("After training")
    after = _ask(run, skill.questions)
    _show_samples(skill.questions, before, after)
    _show_next(run)
    if right(skill.questions, after) < _ENOUGH * len(skill.questions):
        raise CheckFailed(
            f"the skill was not learnt: {_ENOUGH:.0%} right answers are expected",
            remedy="look at the picture of the loss; train longer, or undo what you changed in the recipe",
            where=run,
        )


def _write(files: Mapping[Path, bytes]) -> None:
    """Write what is not there yet; never over what is not as a quickstart writes it."""
    from ascendtune.core.errors import InputError, translated_disk_errors
    from ascendtune.core.files import write_atomically

    there = [path for path in files if path.exists()]
    for path in there:
        if not path.is_file() or path.read_bytes() != files[path]:
            raise InputError(
                f"{path.name} is there already, and not as quickstart writes it",
                remedy="choose a new place with --directory; a recipe that you have changed is for `ascendtune train`",
                where=path,
            )
    for path in files.keys() - there:
        with translated_disk_errors(path.parent, "writing the quickstart's files"):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, files[path])


def _ask(weights: Path, words: Sequence[str]) -> list[str]:
    from ascendtune.infer.engine import load

    print(f"asking {weights} {len(words)} questions ...", flush=True)
    answers = load(weights).generate([question(word) for word in words], _LONGEST_ANSWER, batch_size=len(words))
    score = right(words, answers)
    result = f"{score} of {len(words)} answers are right ({score / len(words):.0%})"
    print(colour(result, "green" if score >= _ENOUGH * len(words) else "bold", sys.stdout), flush=True)
    return answers


def _run(argv: Sequence[str]) -> int:
    """Run a command to its end, as if it were this one: the same terminal, and signals go to it."""
    sys.stdout.flush()
    child = process.Child(argv, os.environ)
    with _signals_passed_to(child):
        # Torch's threads are there by now, and the kernel may give one of them the signal: the main thread, which
        # passes it on, must not sleep until the child has ended.
        while (exit_code := child.wait(_LOOK_SECONDS)) is None:
            pass
    return exit_code if exit_code >= 0 else 128 - exit_code


@contextmanager
def _signals_passed_to(child: process.Child) -> Iterator[None]:
    def pass_on(number: int, frame: FrameType | None) -> None:
        # The terminal that goes away is like a scheduler that takes the machine back.
        child.signal(signal.SIGTERM if number == signal.SIGHUP else signal.Signals(number))

    old = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _newest(runs: Path) -> Path:
    from ascendtune.cli.runs import find_runs

    return find_runs(runs)[-1].path


def _show_samples(words: Sequence[str], before: Sequence[str], after: Sequence[str]) -> None:
    from ascendtune.cli.terminal import table

    rows = [
        (f"{ASKED}{word}", _cut(first), _cut(second), "right" if second == answer(word) else "wrong")
        for word, first, second in zip(words, before, after, strict=True)
    ]
    first, rest = rows[: _SAMPLES - 1], rows[_SAMPLES - 1 :]
    # A mistake, where there is one, says more than another right answer.
    last = next((row for row in rest if row[-1] == "wrong"), rest[0])
    print("\n" + table(("question", "before", "after", ""), [*first, last]))


def _show_next(run: Path) -> None:
    _headline("What is where")
    print(f"run directory   {run}\nloss picture    {run / 'loss.png'}\nfinal weights   {run / 'model'}")
    _headline("What to do next")
    ours, place = _command("ascendtune"), shlex.quote(str(run))
    for what, command in (
        ("talk to it: a word, or Sort the letters: WORD", f"{ours} chat {place}"),
        ("look at the run", f"{ours} runs show {place}"),
        ("see its curves", f"{_command('tensorboard')} --logdir {shlex.quote(str(run.parent))}"),
        ("write a recipe for your own model and data", f"{ours} init"),
    ):
        print(f"{what}\n  {colour(command, 'bold', sys.stdout)}")


def _command(name: str) -> str:
    """How to call `name` from here: by its name when the shell finds the one that belongs to us, else by its path."""
    ours = Path(sys.executable).parent / name
    found = shutil.which(name)
    if not ours.is_file() or (found and Path(found).resolve() == ours.resolve()):
        return name
    return shlex.quote(os.path.relpath(ours) if ours.is_relative_to(Path.cwd()) else str(ours))


def _headline(text: str) -> None:
    print(f"\n{colour(text, 'bold', sys.stdout)}", flush=True)


def _indented(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True))


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
  learning_rate: 2e-3  # high: the weights start random
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
    """As YAML: plain where that is safe, else in quotes."""
    return text if re.fullmatch(r"[\w./][\w./{}-]*", text) else json.dumps(text)
