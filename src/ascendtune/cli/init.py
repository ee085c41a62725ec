"""`ascendtune init`"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from ascendtune.cli.messages import warn
from ascendtune.cli.options import Quiet, complete_template, one_of
from ascendtune.cli.terminal import width
from ascendtune.core.errors import DataError, InputError
from ascendtune.core.files import expanded
from ascendtune.core.terminal_text import wrapped
from ascendtune.core.units import count_of

if TYPE_CHECKING:
    from ascendtune.cli.init_data import DataFacts
    from ascendtune.recipe.recipe import Recipe

_ROWS_LOOKED_AT = 20
"""Number of rows among which an answer within the model's length is searched for."""


def _complete_format(incomplete: str) -> list[str]:
    from ascendtune.data.format.choose import FORMATS

    return [name for name in FORMATS if name.startswith(incomplete)]


def _complete_preset(incomplete: str) -> list[str]:
    from ascendtune.cli.preset import preset_files

    return [name for name in preset_files() if name.startswith(incomplete)]


def init(
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Directory or hub id of the model.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="DATA", help="File, directory or hub id of a data set; repeatable."),
    ] = None,
    tuner: Annotated[
        str | None,
        typer.Option(
            metavar="full|lora|oft",
            help="Default: depends on the model's size.",
            autocompletion=one_of("full", "lora", "oft"),
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=COLUMN", help="The column for a field, e.g. prompt=Frage; repeatable."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Format of the rows, as data.train.format.", autocompletion=_complete_format),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(metavar="NAME", help="Encoding of the files, as data.train.encoding.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Chat template, as data.template.", autocompletion=complete_template),
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option(
            metavar="sft|pretrain|preference|reward",
            help="As method.stage.",
            autocompletion=one_of("sft", "pretrain", "preference", "reward"),
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE",
            help="Copy the training settings of a recipe: a file, or e.g. lora-dpo.",
            autocompletion=_complete_preset,
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The recipe to write.")] = Path("recipe.yaml"),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Overwrite, and accept guesses, without asking.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write a commented recipe for a model and data; asks for missing values.

    \b
    ascendtune init
    ascendtune init --model models/qwen --data rows.json
    ascendtune init --model models/qwen --data faq.csv --columns prompt=Frage --columns completion=Antwort

    Stage, format, columns, template, lengths and tuner are derived from the first rows and config.json: conversations
    are for sft, pairs of answers for preference (DPO), labelled answers for kto, plain text for pretrain. If the rows
    do not show which column contains a field, init asks on a terminal; without a terminal it writes TODO, which train
    rejects.
    """
    from ascendtune.cli.draft import draft, inspect_model
    from ascendtune.cli.init_data import columns_of, inspect_data, preview
    from ascendtune.cli.preset import load_preset
    from ascendtune.core import log
    from ascendtune.core.config import validate
    from ascendtune.core.document import parse_document
    from ascendtune.core.files import write_atomically
    from ascendtune.hub.download import require_local_paths
    from ascendtune.recipe.recipe import Recipe

    log.set_up(quiet=quiet)
    _require_known(tuner=tuner, stage=stage, format=format, encoding=encoding)
    pattern = load_preset(preset) if preset else None
    model = model or _prompt_for("model (directory or hub id)", "--model")
    paths = data or [_prompt_for("data (file, directory or hub id)", "--data")]
    _require_other_than(output, [model, *paths])
    _require_free(output, yes)
    require_local_paths([(model, "model"), *((path, "dataset") for path in paths)])
    facts = inspect_model(model)
    named = columns_of(columns or [])
    data_facts = []
    for path in paths:
        found = inspect_data(path, format=format, columns=named, stage=stage, encoding=encoding)
        for line in [] if quiet and not found.is_undecided else preview(found):
            print(wrapped(line, width(sys.stdout), indent=6))
        data_facts.append(_decided(found, yes))
    text, longest = draft(facts, data_facts, tuner=tuner, template=template, stage=stage, preset=pattern)
    checked = validate(Recipe, parse_document(text, str(output)))
    if checked.method.task != data_facts[0].task and not data_facts[0].is_undecided:
        raise InputError(
            f"the recipe {preset} trains with stage {checked.method.stage}, which does not fit these rows",
            code="preset-of-another-stage",
            remedy="choose another --preset, or leave it out",
        )
    quoted = shlex.quote(str(output))
    write_atomically(output, f"# Check: ascendtune recipe check {quoted}\n# Train: ascendtune train {quoted}\n\n{text}")
    _warn_of_bad_rows(data_facts, are_skipped=checked.data.on_bad_row == "skip")
    if any(each.is_undecided for each in data_facts):
        print(f"wrote {output}; replace TODO there by names of columns, then: ascendtune train {quoted}")
        return
    first = ""
    if longest and facts.max_length and longest.tokens > facts.max_length:
        loses_all = _warn_of_long_rows(checked, quoted, longest.tokens, facts.max_length)
        first = "choose a model for longer texts or shorten the rows, then: " if loses_all else ""
    print(f"wrote {output}; next: {first}ascendtune train {quoted}")


def _require_known(**options: str | None) -> None:
    """Raise for an invalid value of an option; the remedy knows names in other tools."""
    from ascendtune.cli.init_data import STAGES
    from ascendtune.data.encoding import Encoding
    from ascendtune.data.format.choose import FORMATS
    from ascendtune.recipe.other_names import native_overrides

    choices = {
        "tuner": ("full", "lora", "oft"),
        "stage": STAGES,
        "format": tuple(FORMATS),
        "encoding": get_args(Encoding),
    }
    for name, given in options.items():
        known = choices[name]
        if given is not None and given not in known:
            remedy = f"use {', '.join(known[:-1])} or {known[-1]}"
            if name == "stage" and (overrides := native_overrides(name, given)):
                value, _, others = overrides.removeprefix("method.stage=").partition(" ")
                remedy = f"use --stage {value}" + (f", and train with {others}" if others else "")
            raise InputError(f"unknown {name} {given}", code="invalid-option-value", remedy=remedy)


def _warn_of_long_rows(recipe: Recipe, quoted: str, longest: int, limit: int) -> bool:
    """Warn of rows that exceed the model's length; returns whether all of the first ones are dropped.

    Args:
        quoted: the file of the recipe, for a command.
        longest, limit: tokens of the longest row, and of the model's limit.
    """
    from ascendtune.cli.data_show import inspection_of

    rows = inspection_of(recipe).rows(1, _ROWS_LOOKED_AT)
    loses_all = all(each.problem for each in rows)
    what = "rows are cut there, and those without an answer before it are left out"
    what += f", as all of the first {count_of(len(rows), 'row')} are" if loses_all else ""
    warn(
        f"the longest of the first rows has {longest:,} tokens, the model's limit is {limit:,}: {what}; "
        f"`ascendtune data show {quoted} --stats` counts them"
    )
    return loses_all


def _warn_of_bad_rows(data: Sequence[DataFacts], *, are_skipped: bool) -> None:
    advice = "they are skipped" if are_skipped else "fix them, or set data.on_bad_row: skip"
    for each in data:
        if each.bad:
            looked_at = len(each.rows) + len(each.bad)
            warn(
                f"{len(each.bad)} of the first {count_of(looked_at, 'row')} of {each.path} cannot be trained on, first "
                f"{each.bad[0]}; {advice}"
            )


def _decided(facts: DataFacts, yes: bool) -> DataFacts:
    """The facts with columns that the user confirms; undecided ones unchanged without a terminal."""
    from ascendtune.cli.init_data import decided

    if not facts.is_undecided or not facts.found:
        return facts
    if yes and facts.columns:
        return decided(facts, facts.columns)
    if not sys.stdin.isatty():
        return facts
    try:
        return decided(facts, _columns_from_user(facts))
    except DataError as error:
        warn(error.what)
        return facts


def _columns_from_user(facts: DataFacts) -> dict[str, str]:
    """Name in the format -> column, from the user at the terminal."""
    from ascendtune.data.format.guess import flattened

    guessed = ", ".join(f"{word} = {column}" for word, column in facts.columns.items())
    while guessed:
        answer = str(typer.prompt(f"{guessed}: is that right? [Y/n]", default="y", show_default=False)).strip().lower()
        if answer in ("y", "yes"):
            return facts.columns
        if answer in ("n", "no"):
            break
        print("type y to accept, or n to name the columns one by one")
    found = list(dict.fromkeys(name for row in facts.raw for name in flattened(row.values)))
    print(f"columns: {', '.join(found)}")
    words = facts.columns or {word: found[min(at, len(found) - 1)] for at, word in enumerate(facts.undecided_columns)}
    return {word: str(typer.prompt(f"which column is the {word}?", default=likely)) for word, likely in words.items()}


def _prompt_for(what: str, flag: str) -> str:
    if not sys.stdin.isatty():
        raise InputError(f"{flag} is missing, and stdin is not a terminal", code="option-missing", remedy=f"add {flag}")
    return str(typer.prompt(what)).strip()


def _require_other_than(output: Path, given: Sequence[str]) -> None:
    """--yes overwrites an older recipe, never the model or the data."""
    if not output.exists():
        return
    for each in given:
        source = expanded(each).resolve()
        is_part = output.parent.resolve().is_relative_to(source) and output.suffix not in (".yaml", ".yml")
        if is_part or (source.exists() and output.samefile(source)):
            raise InputError(
                f"--output would overwrite {each}",
                code="output-overwrites-input",
                remedy="give another file",
                where=output,
            )


def _require_free(output: Path, yes: bool) -> None:
    if not output.parent.is_dir():
        raise InputError(
            "no such directory",
            code="path-missing",
            remedy=f"mkdir -p {shlex.quote(str(output.parent))}",
            where=output.parent,
        )
    if not output.exists() or yes:
        return
    if not (sys.stdin.isatty() and typer.confirm(f"{output} exists. Overwrite it?")):
        raise InputError(
            "the file exists",
            code="path-exists",
            remedy="give another with --output, or add --yes",
            where=output,
        )
