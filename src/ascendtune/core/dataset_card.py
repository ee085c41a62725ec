"""The files of a subset and split of a data set, according to the header of its README.md.

`datasets` reads the same header: without it, the subsets of a repository could not be told apart, and rows that two of
them share would be trained on twice.
"""

from __future__ import annotations

import io
import posixpath
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeGuard

from ascendtune.core.errors import MachineError
from ascendtune.core.files import open_regular

CARD = "README.md"

_LARGEST_HEADER = 4 << 20
_DEEPEST = 64
_LARGEST_NUMBER = 1 << 64
"""Limit for names that are numbers: one of thousands of digits cannot be printed."""
_DEFAULT = "default"
_MOST_DEEP = 2
"""Most `**` in a pattern: each multiplies the time that the match of a path may take."""
_ANY = ""
"""In place of the split's name, if a card names only a directory."""


@dataclass(frozen=True)
class ChosenFiles:
    """The files of one subset and split."""

    subset: str
    split: str | None
    """None if the patterns are those of all splits, which file names tell apart."""
    patterns: tuple[str, ...]
    """Patterns of paths below the directory; `*` stays within a directory, `**` does not."""
    other_subsets: tuple[str, ...]
    is_guess: bool
    """Whether neither the caller nor the card chose one of several subsets: then it is the first."""

    def includes(self, path: str) -> bool:
        """Whether the file at `path`, relative to the directory, belongs to this subset and split."""
        return self._expression.fullmatch(path) is not None

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        """One expression for all patterns: a card may list a thousand files, each with its own pattern."""
        return re.compile("|".join(map(_expression_of, self.patterns)))


def choose_files(directory: Path, subset: str | None, split: str | None) -> ChosenFiles | None:
    """The files of a subset, by default of the one that the card calls the default, or its first one.

    Args:
        subset, split: names; the default of `split` is `train`, else the first with this word in its name, else all.

    Returns:
        None if the card does not list files of this subset and split.
    """
    configs = _configs_in(_header_of(directory / CARD))
    subsets = _subsets_of(configs)
    name = subset or next(iter(subsets), None)
    splits = subsets.get(name or "", {})
    if _ANY in splits:
        split, patterns = None, splits[_ANY]
    elif split is None:
        split = next((each for each in ("train", *splits) if each in splits and "train" in each), None)
        patterns = splits[split] if split else tuple(each for found in splits.values() for each in found)
    else:
        patterns = splits.get(split, ())
    if name is None or not patterns:
        return None
    others = tuple(each for each in subsets if each != name)
    has_default = name == _DEFAULT or configs[0].get("default") is True
    return ChosenFiles(name, split, patterns, others, bool(others) and subset is None and not has_default)


def named_splits(directory: Path) -> dict[str, list[str]]:
    """Subset -> its splits, as the card names them; empty without a card."""
    subsets = _subsets_of(_configs_in(_header_of(directory / CARD)))
    return {subset: [split for split in splits if split != _ANY] for subset, splits in subsets.items()}


def _subsets_of(configs: list[dict[str, Any]]) -> dict[str, dict[str, tuple[str, ...]]]:
    return {str(each.get("config_name", _DEFAULT)): _splits_of(each) for each in configs}


def _header_of(card: Path) -> dict[str, Any]:
    try:
        state = card.stat()
    except OSError:
        return {}
    return _header_in(card, state.st_mtime_ns, state.st_size)


# A header of a thousand subsets takes a second, and is needed several times for each data set of a recipe.
@lru_cache(maxsize=4)
def _header_in(card: Path, modified: int, size: int) -> dict[str, Any]:
    import yaml

    try:
        with open_regular(card) as file, io.TextIOWrapper(file, "utf-8-sig", errors="replace") as text:
            header = re.match(r"---[ \t]*\n(.*?)\n---[ \t]*(\n|$)", text.read(_LARGEST_HEADER), re.DOTALL)
        values = _loaded(header[1]) if header else None
    except (OSError, MachineError, yaml.YAMLError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _loaded(text: str) -> Any:
    """The values of a YAML text, in a time that its length bounds.

    Raises:
        yaml.YAMLError: not YAML, nested too deeply, or with `<<`: merges of merges double a mapping at each line.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    # libyaml reports events one after the other, but composes values by recursion in C, which overflows the stack.
    for event in yaml.parse(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST or (isinstance(event, yaml.ScalarEvent) and event.value == "<<"):
            raise yaml.YAMLError("nested too deeply, or merged")
    return yaml.load(text, loader)


def _configs_in(header: dict[str, Any]) -> list[dict[str, Any]]:
    """The header's entries for subsets, the default first."""
    configs = header.get("configs")
    found = [each for each in configs if _is_named(each, "config_name")] if isinstance(configs, list) else []
    return sorted(found, key=lambda each: (each.get("default") is not True, each.get("config_name") != _DEFAULT))


def _splits_of(config: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Split -> patterns, of `data_files`: a pattern, a list of patterns or of `{split, path}`, or a mapping."""
    given = config.get("data_dir")
    folder = f"{posixpath.normpath(given.strip('/'))}/".removeprefix("./") if isinstance(given, str) else ""
    files = config.get("data_files", {_ANY: "**"} if folder else ())
    if isinstance(files, dict):
        files = [{"split": split, "path": paths} for split, paths in files.items()]
    splits: dict[str, tuple[str, ...]] = {}
    for each in files if isinstance(files, list | tuple) else [files]:
        split, paths = (
            (str(each.get("split", "train")), each.get("path")) if _is_named(each, "split") else ("train", each)
        )
        names = [
            path
            for path in (paths if isinstance(paths, list) else [paths])
            if isinstance(path, str) and path.count("**") <= _MOST_DEEP
        ]
        splits[split] = (*splits.get(split, ()), *(f"{folder}{name.removeprefix('./')}" for name in names))
    return splits


def _is_named(value: Any, key: str) -> TypeGuard[dict[str, Any]]:
    """Whether `value` is a mapping with a name that can be printed: not a tree of aliases, nor an unbounded number."""
    name = value.get(key) if isinstance(value, dict) else {}
    return not isinstance(name, dict | list) and not (isinstance(name, int) and abs(name) > _LARGEST_NUMBER)


def _expression_of(pattern: str) -> str:
    """A regular expression whose matching time does not grow for hostile patterns: of several `*` in a name each but
    the last matches as little as possible, without backtracking."""
    wild = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
    first, *rest = re.split(r"(\*\*/|\*\*|\*)", pattern)
    expression = [_literal(first)]
    for star, text, following in zip(rest[::2], rest[1::2], [*rest[2::2], ""], strict=False):
        is_settled = star == following == "*" and "/" not in text
        expression.append(f"(?>[^/]*?{_literal(text)})" if is_settled else wild[star] + _literal(text))
    return "".join(expression)


def _literal(text: str) -> str:
    return "[^/]".join(map(re.escape, text.split("?")))
