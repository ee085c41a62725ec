"""`ascendtune recipe check`, `recipe convert` and `recipe schema`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.messages import warn
from ascendtune.cli.options import AsJson, Overrides, RecipeFile
from ascendtune.cli.terminal import PLAIN_COLUMNS, print_json, width
from ascendtune.core.errors import InputError, all_errors, translated_disk_errors
from ascendtune.core.suggest import same_path_elsewhere
from ascendtune.core.terminal_text import wrapped
from ascendtune.core.units import count_of, format_bytes

if TYPE_CHECKING:
    from ascendtune.data.prepare import PreparedData
    from ascendtune.data.spec import DatasetSpec, Task
    from ascendtune.recipe.method import MethodSection
    from ascendtune.recipe.recipe import Recipe
    from ascendtune.recipe.sections import OptimSection


def check(
    recipe: RecipeFile,
    overrides: Overrides = None,
    data: Annotated[
        bool, typer.Option("--data", help="Read and tokenise every row, as `ascendtune train --prepare` does.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a recipe and the paths in it, and summarise it. Nothing is started; without --data nothing is downloaded.

    \b
    ascendtune recipe check recipe.yaml
    ascendtune recipe check recipe.yaml method.tuner=lora
    ascendtune recipe check recipe.yaml --data

    Without --data only the first rows of each data set are read, for their format.
    """
    from ascendtune.data.report import lines
    from ascendtune.recipe.recipe import Recipe
    from ascendtune.train.prepare import require_paths

    checked, origins = Recipe.load_with_origins(recipe, overrides or [])
    require_paths(checked)
    facts = _facts(checked)
    prepared = _prepared(checked) if data else None
    given = sum(origin != "default" for origin in origins.values())
    warnings = [*checked.notes, *checked.without_effect(origins)]
    if as_json:
        from ascendtune.train.prepare import data_reports

        of_data = None if prepared is None else data_reports(prepared)
        found = {
            "recipe": str(recipe),
            "values": checked.model_dump(mode="json"),
            "set": [key for key, origin in origins.items() if origin != "default"],
            "learning_rate": checked.learning_rate,
            "run_directory": str(checked.run_directory()),
            "data_reports": of_data,
            "warnings": warnings,
        }
        print_json(found)
        return
    print(f"{recipe}: valid, {count_of(given, 'key')} set, {len(origins) - given} at their defaults")
    longest = max(map(len, facts))
    for name, value in facts.items():
        print(wrapped(f"  {name.ljust(longest)}  {value}", width(sys.stdout), indent=longest + 4))
    unchecked = (
        "memory, devices" if data else "rows beyond the first of each data set (--data reads all), memory, devices"
    )
    report = [] if prepared is None else lines(prepared.report, width(sys.stdout) or PLAIN_COLUMNS)
    for line in (*report, f"not checked: {unchecked}"):
        print(wrapped(line, width(sys.stdout)))
    for sentence in warnings:
        warn(sentence)


def _prepared(recipe: Recipe) -> PreparedData:
    """Prepare the data, stored in the cache where `ascendtune train` finds them.

    Raises:
        DataError: files or rows.
    """
    from ascendtune.cli.data_show import prepared_data
    from ascendtune.core import log

    log.set_up()
    prepared = prepared_data(recipe)
    for message in prepared.warnings:
        warn(message)
    return prepared


def _facts(recipe: Recipe) -> dict[str, str]:
    """The summary of the recipe.

    Raises:
        InputError: all files of models, adapters and data sets that are not as the recipe says.
    """
    batch, optim = recipe.batch, recipe.optim
    length = f"up to {recipe.data.max_length:,} tokens"
    read = dict[str, list[str]]()
    with all_errors() as check:
        with check():
            read["model"] = [_model(recipe)]
        for name, specs in (("data", recipe.data.train), ("evaluation", recipe.data.eval)):
            for spec in specs:
                with check():
                    read.setdefault(name, []).append(_data(spec, recipe.method.task))
        with check():
            _require_reference(recipe)
        with check():
            _require_adapters(recipe)
    return {
        **{name: ", ".join(shown) for name, shown in read.items()},
        "stage": recipe.method.stage + _loss(recipe.method),
        "tuner": _tuner(recipe),
        "learning rate": f"{recipe.learning_rate:g}, {optim.scheduler}",
        "length": _length(optim),
        "one step": f"{batch.per_device} × {batch.accumulate} sequences of {length} on each device",
        "run directory": str(recipe.run_directory()),
    }


def _tuner(recipe: Recipe) -> str:
    match recipe.method.tuner:
        case "lora":
            return f"lora, rank {recipe.method.lora.rank}"
        case "oft":
            oft = recipe.method.oft
            size = f"blocks of {oft.block_size or 32}" if oft.rank is None else count_of(oft.rank, "block")
            return f"oft, {size}"
        case other:
            return other


def _loss(method: MethodSection) -> str:
    return f", loss {method.preference.loss}" if method.stage == "preference" else ""


def _length(optim: OptimSection) -> str:
    if optim.max_steps:
        return f"{optim.max_steps:,} step{'s' if optim.max_steps > 1 else ''}"
    epochs = optim.epochs or 1
    return f"{epochs:g} epoch{'s' if epochs != 1 else ''}"


def _model(recipe: Recipe) -> str:
    from ascendtune.data.template import ChatTemplate
    from ascendtune.data.tokenizer import Tokenizer
    from ascendtune.hub.download import find_local
    from ascendtune.hub.model_config import require_rows_for_tokens
    from ascendtune.hub.verify import check_model_directory, require_unquantised

    path = find_local(recipe.model.path, "model")
    if path is None:
        return _hub_id(recipe.model.path)
    check_model_directory(path, weights_needed=recipe.model.init == "pretrained")
    require_unquantised(path)
    tokenizer = Tokenizer.load(path, recipe.model.new_tokens)
    require_rows_for_tokens(path / "config.json", tokenizer.vocab_size, len(recipe.model.new_tokens))
    if recipe.method.stage != "pretrain":
        ChatTemplate.load(recipe.data.template, tokenizer, loss_on=recipe.data.loss_on)
    return str(path)


def _hub_id(name: str) -> str:
    elsewhere = same_path_elsewhere(Path(name), fits=Path.is_dir)
    return f"{name} (hub id, not checked{f'; or is the local path {elsewhere} meant?' if elsewhere else ''})"


def _require_reference(recipe: Recipe) -> None:
    from ascendtune.hub.download import find_local
    from ascendtune.hub.verify import check_model_directory, require_unquantised

    if recipe.method.preference.reference and (path := find_local(recipe.method.preference.reference, "model")):
        check_model_directory(path, weights_needed=True)
        require_unquantised(path, "comparing with")


def _require_adapters(recipe: Recipe) -> None:
    from ascendtune.hub.download import find_local
    from ascendtune.train.stored_adapters import find_adapters

    if all(find_local(adapter, "model") for adapter in recipe.method.start_from):
        base = find_local(recipe.model.path, "model") if recipe.model.init == "pretrained" else None
        find_adapters(recipe.method, base, quantised=recipe.model.quantization is not None)


def _data(spec: DatasetSpec, task: Task) -> str:
    from ascendtune.data.files import data_files
    from ascendtune.data.load import format_of
    from ascendtune.hub.download import find_local

    path = find_local(spec.path, "dataset")
    if path is None:
        return _hub_id(spec.path)
    files = data_files(spec, path)
    size = format_bytes(sum(file.stat().st_size for file in files))
    about = [format_of(spec, path, task), *([count_of(len(files), "file")] if len(files) > 1 else []), size]
    return f"{spec.path} ({', '.join(about)})"


def convert(
    recipe: Annotated[Path, typer.Argument(help="A LLaMA-Factory recipe, YAML or JSON.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Native keys to change, as for `ascendtune train`."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file, which must not exist.")
    ] = None,
) -> None:
    """Convert a LLaMA-Factory recipe to a native one, with comments on differences.

    \b
    ascendtune recipe convert llamafactory.yaml
    ascendtune recipe convert llamafactory.yaml -o recipe.yaml

    `ascendtune train llamafactory.yaml` runs it without conversion.
    """
    import textwrap

    import yaml

    from ascendtune.cli.draft import comment
    from ascendtune.core.config import validate
    from ascendtune.recipe.recipe import Recipe

    document = Recipe.read(recipe, overrides or [])
    validate(Recipe, document)
    if not document.notes:
        raise InputError(
            "the recipe is already in native form",
            code="already-native-recipe",
            remedy="use it as it is",
            where=recipe,
        )
    order = {name: document.values[name] for name in Recipe.model_fields if name in document.values}
    comments = [
        textwrap.fill(note, 120, initial_indent="# - ", subsequent_indent="#   ", break_long_words=False)
        for note in document.notes
    ]
    text = "\n".join(
        [f"# From {comment(str(recipe))}.", *comments, "", yaml.safe_dump(order, sort_keys=False, allow_unicode=True)]
    )
    if output is None:
        print(text, end="")
        return
    with translated_disk_errors(output, "writing the recipe"):
        try:
            with output.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise InputError(
                "the file exists", code="path-exists", remedy="give another name with -o", where=output
            ) from None
    print(f"wrote {output}")


def schema() -> None:
    """Print the JSON schema of recipes.

    \b
    ascendtune recipe schema > recipe.schema.json

    Editors complete and check keys if the first line of the recipe names the schema:

    \b
    # yaml-language-server: $schema=recipe.schema.json
    """
    from ascendtune.recipe.recipe import Recipe

    print_json(Recipe.model_json_schema())
