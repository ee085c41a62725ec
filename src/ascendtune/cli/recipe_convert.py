"""`ascendtune recipe convert`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def convert(
    recipe: Annotated[Path, typer.Argument(help="A LLaMA-Factory recipe, YAML or JSON.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Keys of ours to change, as for `ascendtune train`."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there instead; never over a file.")
    ] = None,
) -> None:
    """Print a LLaMA-Factory recipe as one of ours, with comments on what is done otherwise.

    \b
    ascendtune recipe convert theirs.yaml
    ascendtune recipe convert theirs.yaml -o recipe.yaml

    `ascendtune train theirs.yaml` runs it without converting.
    """
    import textwrap

    import yaml

    from ascendtune.core.config import validate
    from ascendtune.core.errors import InputError, translated_disk_errors
    from ascendtune.recipe.recipe import Recipe

    document = Recipe.read(recipe, overrides or [])
    validate(Recipe, document)
    if not document.notes:
        raise InputError("this is a recipe of ours already", remedy="train it as it is", where=recipe)
    order = {name: document.values[name] for name in Recipe.model_fields if name in document.values}
    comments = [
        textwrap.fill(note, 120, initial_indent="# - ", subsequent_indent="#   ", break_long_words=False)
        for note in document.notes
    ]
    text = "\n".join([f"# From {recipe}.", *comments, "", yaml.safe_dump(order, sort_keys=False, allow_unicode=True)])
    if output is None:
        print(text, end="")
        return
    with translated_disk_errors(output, "writing the recipe"):
        try:
            with output.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise InputError("the file exists", remedy="give another name after -o", where=output) from None
    print(f"wrote {output}")
