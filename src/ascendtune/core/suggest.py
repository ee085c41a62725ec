"""Suggestions for a word or path that does not exist: "did you mean …", and the error with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path

from ascendtune.core.errors import InputError

_MOST_LOOKED_AT = 1000


def closest(word: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The choice most similar to `word`, or None.

    Args:
        cutoff: similarity from 0 to 1 below which nothing is suggested, as in `difflib.get_close_matches`.
    """
    # Imported here: only errors need it.
    import difflib

    choices = list(choices)
    if same := next((choice for choice in choices if choice.casefold() == word.casefold()), None):
        return same
    return next(iter(difflib.get_close_matches(word, choices, n=1, cutoff=cutoff)), None)


def did_you_mean(word: str, choices: Iterable[str], otherwise: str = "", cutoff: float = 0.6) -> str:
    """`did you mean 'lora'?`, or `otherwise` where no choice is similar to `word`."""
    similar = closest(word, choices, cutoff)
    return f"did you mean '{similar}'?" if similar else otherwise


def require_known(names: Iterable[str], known: Collection[str], what: str, otherwise: str | None = None) -> None:
    """Raise for the first of `names` that is not `known`.

    Args:
        what: the kind of the name, such as "strategy".
        otherwise: the remedy where none is similar (default: all known names).

    Raises:
        InputError: the remedy is the most similar name.
    """
    for name in names:
        if name not in known:
            remedy = did_you_mean(name, known, otherwise or f"choose from {', '.join(known)}")
            raise InputError(f"unknown {what} '{name}'", code="unknown-name", remedy=remedy)


def known_names(text: str, known: Collection[str], what: str) -> list[str]:
    """The names in `a,b`, each once.

    Raises:
        InputError: as `require_known`.
    """
    names = [word.strip() for word in text.split(",")]
    require_known(names, known, what)
    return list(dict.fromkeys(names))


def closest_path(missing: Path, *, fits: Callable[[Path], bool] = Path.exists) -> Path | None:
    """The existing path that was probably meant by a path that does not exist, or None.

    It is the same path in a directory above or below the working directory; else the entry most similar to the first
    part of `missing` that does not exist.

    Args:
        fits: whether a path can have been meant: `Path.is_dir` for models.
    """
    if elsewhere := same_path_elsewhere(missing, fits=fits):
        return elsewhere
    part = missing
    while not part.parent.is_dir():
        if part.parent == part:
            return None
        part = part.parent
    try:
        names = [entry.name for entry in part.parent.iterdir() if _is_sure(partial(fits, entry))]
    except OSError:
        return None
    # A missing suffix is the most common mistake, and a short name with a suffix has few letters in common.
    same_stem = sorted(name for name in names if name.split(".")[0] == part.name.split(".")[0])
    similar = same_stem[0] if same_stem else closest(part.name, names)
    # An equal suffix does not suffice to make names similar: nothing.yaml is not dpo.yaml.
    if similar and (len(part.stem) < 3 or closest(part.stem, [Path(similar).stem], cutoff=0.5)):
        return part.parent / similar
    return None


def same_path_elsewhere(missing: Path, *, fits: Callable[[Path], bool] = Path.exists) -> Path | None:
    """The path, relative to the working directory, of a file whose path was written for another one, such as the
    recipe's.

    Args:
        fits: whether a path can have been meant.
    """
    if missing.is_absolute() or not missing.parts:
        return None
    # From further up, a path that leads up would leave the project.
    above = (Path(*[".."] * levels) for levels in (() if missing.parts[0] == ".." else (1, 2, 3)))
    below = sorted(_directories_in(Path()))
    further = chain.from_iterable(map(_directories_in, below))
    places = chain(above, below, islice(further, _MOST_LOOKED_AT))
    elsewhere = next((place / missing for place in places if _is_sure(partial(fits, place / missing))), None)
    if elsewhere is None:
        return None
    short = Path(os.path.normpath(elsewhere))
    return short if _is_sure(lambda: short.samefile(elsewhere)) else elsewhere


def _directories_in(place: Path) -> Iterator[Path]:
    """Directories in `place`; none if it cannot be read, such as `lost+found` in the root of a disk."""
    with suppress(OSError), os.scandir(place) as entries:
        yield from (Path(each.path) for each in islice(entries, _MOST_LOOKED_AT) if _is_sure(each.is_dir))


def _is_sure(question: Callable[[], bool]) -> bool:
    """The answer of the file system; False if it fails."""
    try:
        return question()
    except OSError:
        return False


def run_suggestion(missing: Path, otherwise: str) -> str:
    """`path_suggestion`, also for a name without a directory that may be a run in `runs/`."""
    if missing.parent == Path():
        similar = closest(missing.name, [each.parent.name for each in Path("runs").glob("*/run.json")])
        if similar:
            return f"did you mean '{Path('runs', similar)}'?"
    return path_suggestion(missing, otherwise)


def path_suggestion(missing: Path, otherwise: str, *, fits: Callable[[Path], bool] = Path.exists) -> str:
    """`did_you_mean` for a path.

    Args:
        fits: whether a path can have been meant.
    """
    if elsewhere := same_path_elsewhere(missing, fits=fits):
        return f"did you mean '{elsewhere}'? A path starts at the working directory"
    similar = closest_path(missing, fits=fits)
    return f"did you mean '{similar}'?" if similar else otherwise
