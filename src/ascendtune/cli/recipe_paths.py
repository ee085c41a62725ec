"""Which paths of this host a recipe needs, and which it writes to: what a container has to be given."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ascendtune.core.directories import cache_directory
from ascendtune.core.errors import InputError, RecipeError
from ascendtune.core.files import expanded
from ascendtune.core.log import warn
from ascendtune.hub.download import find_local
from ascendtune.hub.modelscope import Kind
from ascendtune.job.backend.submission import Mount

if TYPE_CHECKING:
    from ascendtune.recipe.recipe import Recipe


def run_place(recipe: Recipe) -> Path:
    """Where the run directory is made; beside it, because a taken name gets a number."""
    return recipe.run_directory().absolute().parent


def mounts_on_this_host(recipe_file: Path, recipe: Recipe) -> tuple[tuple[Mount, ...], dict[str, str]]:
    """Mounts, and the variables that point to the caches among them.

    Raises:
        RecipeError, DataError: a path of the recipe is not there.
    """
    read = {recipe_file.absolute()}
    written = {run_place(recipe), cache_directory()}
    variables = {"XDG_CACHE_HOME": str(cache_directory().parent)}
    for text, kind in _sources(recipe):
        if local := find_local(text, kind):
            read |= _with_targets(local.absolute())
        else:
            home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface").absolute()
            written.add(home)
            variables["HF_HOME"] = str(home)
    for path in _files(recipe):
        if not path.exists():
            raise RecipeError("the recipe names a file that is not there", remedy="check the path", where=path)
        read |= _with_targets(path)
    return _distinct(read, written), variables


def mounts_elsewhere(recipe: Recipe) -> tuple[Mount, ...]:
    """Mounts where the recipe's paths belong to other machines, and need not be here."""
    read = set()
    for text, kind in _sources(recipe):
        try:
            local = find_local(text, kind)
        except InputError:
            if not Path(text).is_absolute():
                raise
            warn(f"{text} is not on this machine; it has to be there on the nodes")
            local = Path(text)
        if local is not None:
            read.add(local.absolute())
    return _distinct({*read, *_files(recipe)}, {run_place(recipe)})


def _sources(recipe: Recipe) -> list[tuple[str, Kind]]:
    """Paths or hub ids."""
    models = [recipe.model.path, *recipe.method.lora.start_from]
    if recipe.method.preference.reference:
        models.append(recipe.method.preference.reference)
    data = [spec.path for spec in (*recipe.data.train, *recipe.data.eval)]
    return [*((name, "model") for name in models), *((name, "dataset") for name in data)]


def _files(recipe: Recipe) -> set[Path]:
    """Paths, where the key says one and no name."""
    given = {recipe.data.template, recipe.parallel.deepspeed.config or "", recipe.checkpoint.resume}
    paths = ((text, expanded(text)) for text in given if text)
    return {path.absolute() for text, path in paths if "/" in text or path.is_file()}


def _with_targets(path: Path) -> set[Path]:
    """`path`, and the folders of what symbolic links in it point to: a snapshot in a hub's cache is only links."""
    if not path.is_dir():
        return {path}
    targets = {entry.resolve() for entry in path.iterdir() if entry.is_symlink()}
    return {path, *(target.parent for target in targets if not target.is_relative_to(path))}


def _distinct(read: Iterable[Path], written: Iterable[Path]) -> tuple[Mount, ...]:
    """Sorted; without what lies in a directory that is mounted anyway."""
    wanted = dict.fromkeys(read, False) | dict.fromkeys(written, True)
    return tuple(
        Mount(path, writable)
        for path, writable in sorted(wanted.items())
        if not any(wanted.get(above, False) or (above in wanted and not writable) for above in path.parents)
    )
