"""The recipes that come with ascendtune, as a pattern for new ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core.document import parse_document
from ascendtune.core.errors import InputError
from ascendtune.core.suggest import did_you_mean

_ABOUT_THE_DATA = ("name", "run_dir", "model", "data")
_SECTION = re.compile(r"^(?=[A-Za-z_]\w*:)", re.MULTILINE)
_LARGEST_BYTES = 256 * 1024


@dataclass(frozen=True)
class Preset:
    """A recipe whose way of training is taken over."""

    name: str
    sections: str
    """Its text without the sections on name, model and data."""


def load_preset(name: str) -> Preset:
    """A recipe by its name, or by the path of its file.

    Raises:
        InputError: there is no such recipe.
    """
    known = {path.stem: path for path in sorted(_directory().glob("*.yaml"))}
    path = known.get(name) or Path(name)
    if not path.is_file():
        raise InputError(
            f"there is no recipe '{name}' to start from",
            code="unknown-preset",
            remedy=f"{did_you_mean(name, known)} give a file, or one of: {', '.join(known)}".lstrip(),
        )
    with path.open(encoding="utf-8") as file:
        text = file.read(_LARGEST_BYTES)
    parse_document(text, str(path))
    parts = [part for part in _SECTION.split(text)[1:] if part.partition(":")[0] not in _ABOUT_THE_DATA]
    return Preset(path.stem, "".join(parts))


def _directory() -> Path:
    """`recipes/` beside the package, where a wheel has it, or of the clone."""
    package = Path(__file__).resolve().parents[1]
    packaged = package / "recipes"
    return packaged if packaged.is_dir() else package.parents[1] / "recipes"
