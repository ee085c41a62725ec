"""`ascendtune init`"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ascendtune.cli.complain import warn
from ascendtune.core.errors import InputError
from ascendtune.core.files import expanded


def init(
    model: Annotated[str | None, typer.Option(help="Directory or hub id of the model.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="File, directory or hub id of a data set; repeatable.")] = None,
    tuner: Annotated[
        str | None, typer.Option(metavar="full|lora", help="Default: depends on the model's size.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The recipe to write.")] = Path("recipe.yaml"),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Overwrite without asking.")] = False,
) -> None:
    """Write a commented recipe for a model and data; asks for missing values.

    \b
    ascendtune init
    ascendtune init --model models/qwen --data rows.json

    Stage, format, template, lengths and tuner follow from the data's columns and first rows and from config.json:
    conversations are for sft, pairs of answers for preference (DPO), labelled answers for kto, plain text for pretrain.
    """
    from ascendtune.cli.draft import draft, look_at_data, look_at_model
    from ascendtune.core.config import validate
    from ascendtune.core.document import parse_document
    from ascendtune.core.files import write_atomically
    from ascendtune.core.units import count_of
    from ascendtune.recipe.recipe import Recipe

    if tuner not in (None, "full", "lora"):
        raise InputError(f"unknown tuner {tuner}", code="invalid-option-value", remedy="use full or lora")
    model = model or _ask("model (directory or hub id)", "--model")
    paths = data or [_ask("data (file, directory or hub id)", "--data")]
    _require_other_than(output, [model, *paths])
    _require_free(output, yes)
    facts = look_at_model(model)
    data_facts = [look_at_data(path) for path in paths]
    text = draft(facts, data_facts, tuner=tuner)
    validate(Recipe, parse_document(text, str(output)))
    write_atomically(output, f"# Check: ascendtune recipe check {output}\n# Train: ascendtune train {output}\n\n{text}")
    for each in data_facts:
        if each.bad:
            looked_at = len(each.rows) + len(each.bad)
            warn(
                f"{len(each.bad)} of the first {count_of(looked_at, 'row')} of {each.path} cannot be trained on, first "
                f"{each.bad[0]}; fix them, or set data.on_bad_row: skip"
            )
    print(f"wrote {output}; next: ascendtune train {output}")


def _ask(what: str, flag: str) -> str:
    if not sys.stdin.isatty():
        raise InputError(f"{flag} is missing, and stdin is not a terminal", code="missing-option", remedy=f"add {flag}")
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
            code="no-such-directory",
            remedy=f"mkdir -p {output.parent}",
            where=output.parent,
        )
    if not output.exists() or yes:
        return
    if not (sys.stdin.isatty() and typer.confirm(f"{output} exists. Overwrite it?")):
        raise InputError(
            "the file exists",
            code="file-exists",
            remedy="give another with --output, or add --yes",
            where=output,
        )
