"""The recipes that are installed with ascendtune, as templates for new ones."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core.document import Document, parse_document
from ascendtune.core.errors import InputError
from ascendtune.core.suggest import did_you_mean

_ABOUT_THE_DATA = ("name", "run_dir", "model", "data")
_SECTION = re.compile(r"^(?=[A-Za-z_]\w*:)", re.MULTILINE)
_LARGEST_BYTES = 256 * 1024


@dataclass(frozen=True)
class Preset:
    """A recipe whose training settings are copied."""

    name: str
    sections: str
    """Its text without the sections on name, model and data."""


def preset_files() -> dict[str, Path]:
    """The recipes that are installed with ascendtune, by name."""
    package = Path(__file__).resolve().parents[1]
    packaged = package / "recipes"
    # A wheel has them in the package; otherwise they are those of the clone.
    directory = packaged if packaged.is_dir() else package.parents[1] / "recipes"
    return {path.stem: path for path in sorted(directory.glob("*.yaml"))}


def load_preset(name: str) -> Preset:
    """A recipe by its name, or by the path of its file.

    Raises:
        InputError: there is no such recipe.
    """
    known = preset_files()
    path = known.get(name) or Path(name)
    if not path.is_file():
        raise InputError(
            f"there is no recipe '{name}' to start from",
            code="unknown-preset",
            remedy=f"{did_you_mean(name, known)} give a file, or one of: {', '.join(known)}".lstrip(),
        )
    with path.open(encoding="utf-8") as file:
        text = file.read(_LARGEST_BYTES)
    _require_native(parse_document(text, str(path)))
    parts = [part for part in _SECTION.split(text)[1:] if part.partition(":")[0] not in _ABOUT_THE_DATA]
    return Preset(path.stem, "".join(parts))


def _require_native(document: Document) -> None:
    """Raises:
    RecipeError: it is a recipe of another tool; the remedy has the equivalent commands.
    """
    from ascendtune.recipe.llamafactory.detect import is_llamafactory_recipe
    from ascendtune.recipe.llamafactory.v1 import is_v1_recipe
    from ascendtune.recipe.other_recipes import refuse_other_recipe
    from ascendtune.recipe.recipe import Recipe

    refuse_other_recipe(document)
    if is_v1_recipe(document) or is_llamafactory_recipe(document, Recipe.model_fields):
        raise InputError(
            "this is a recipe of LLaMA-Factory",
            code="recipe-of-another-tool",
            remedy=f"`ascendtune recipe convert {shlex.quote(document.source)} -o native.yaml` writes one that "
            f"--preset takes; or train it: ascendtune train {shlex.quote(document.source)}",
            where=document.source,
        )
