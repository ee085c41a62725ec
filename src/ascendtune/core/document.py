"""A YAML or JSON file as plain values that know their places, and `a.b=c` words that change them.

YAML is read with positions: `1e-4` is a number, a key that stands twice is an error, and each value remembers where it
came from, so that a refusal can point at it and `origins.json` can tell default, file and override apart.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ascendtune.core.errors import RecipeError, read_fault
from ascendtune.core.files import is_endless

Path_ = tuple[str | int, ...]

_RECIPE = "recipe"


@dataclass
class Document:
    """Plain values and the place of each: `places[("optim", "learning_rate")] == "recipe.yaml:7"`."""

    values: dict[str, Any]
    source: str
    places: dict[Path_, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Sentences for the user, where the values were translated from somebody else's words."""

    def place(self, path: Path_) -> str:
        """Where `path` stands, or the nearest thing around it."""
        for length in range(len(path), 0, -1):
            if found := self.places.get(path[:length]):
                return found
        return self.source


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, except that `1e-4` is a float, as YAML 1.2 and every user mean it."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$|^[-+]?\d[\d_]*\.[\d_]*$|^[-+]?\.\d[\d_]*([eE][-+]?\d+)?$"),
    list("-+0123456789."),
)


def read_document(path: Path, what: str = _RECIPE) -> Document:
    """Read a YAML or JSON file.

    Args:
        what: how messages call it.

    Raises:
        RecipeError: missing, not YAML, not a mapping, or a key that stands twice.
        MachineError: it may not be read.
    """
    try:
        if is_endless(path):
            raise RecipeError("a pipe or a device, not a file", remedy=f"write the {what} into a file", where=path)
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError(f"no such {what}", remedy=_missing_file_remedy(path, what), where=path) from None
    except IsADirectoryError:
        resumed = "; a run is resumed with its recipe.yaml" if what == _RECIPE else ""
        raise RecipeError(
            f"this is a directory, not a {what}", remedy=f"give the file in it{resumed}", where=path
        ) from None
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"not UTF-8 text (byte {error.start})", remedy=f"save the {what} as UTF-8", where=path
        ) from error
    except OSError as error:
        fault = RecipeError(f"cannot be read: {error.strerror}", remedy="check the path", where=path)
        raise read_fault(error, path) or fault from error
    # JSON may be indented with tabs, which YAML refuses; in a JSON string a tab is always escaped.
    return parse_document(text.replace("\t", " ") if path.suffix.lower() == ".json" else text, str(path), what)


def parse_document(text: str, source: str, what: str = _RECIPE) -> Document:
    """`read_document` for text; `source` is the place used in messages."""
    loader, language = None, "JSON" if source.endswith(".json") else "YAML"
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            start = "`ascendtune init` writes one to start from" if what == _RECIPE else "write its keys into it"
            raise RecipeError(f"the {what} is empty", remedy=start, where=source)
        if not isinstance(node, yaml.MappingNode):
            raise RecipeError(
                f"the {what} is not a mapping of keys to values", remedy="write it as `key: value` lines", where=source
            )
        document = Document({}, source)
        document.values = _plain(loader, node, document, ())
        return document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        raise RecipeError(
            f"not valid {language}: {error.problem or error.context}",
            remedy="check indentation, colons and quotes at this line",
            where=where,
        ) from error
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise RecipeError(
            f"not valid {language}: {said}", remedy="check the file for stray characters", where=source
        ) from error
    finally:
        if loader is not None:
            loader.dispose()


def _plain(loader: _Loader, node: yaml.Node, document: Document, path: Path_) -> Any:
    document.places.setdefault(path, f"{document.source}:{node.start_mark.line + 1}")
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            where = f"{document.source}:{key_node.start_mark.line + 1}"
            if not isinstance(key, str):
                raise RecipeError(f"the key {key!r} is not text", remedy="put the key in quotes", where=where)
            if key in result:
                raise RecipeError(f"the key '{key}' stands twice", remedy="remove one of them", where=where)
            document.places[(*path, key)] = where
            result[key] = _plain(loader, value_node, document, (*path, key))
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, item, document, (*path, index)) for index, item in enumerate(node.value)]
    return loader.construct_object(node, deep=True)


def _missing_file_remedy(path: Path, what: str) -> str:
    folder = path.parent
    names = (
        [entry.name for entry in folder.iterdir() if entry.suffix in (".yaml", ".yml", ".json")]
        if folder.is_dir()
        else []
    )
    if close := difflib.get_close_matches(path.name, names, n=1):
        return f"did you mean '{folder / close[0]}'?"
    return "check the path" + ("; `ascendtune init` writes a recipe" if what == _RECIPE else "")


def apply_overrides(document: Document, overrides: Sequence[str]) -> None:
    """Set `a.b=c` words in place; the value is read as YAML.

    Raises:
        RecipeError: a word without `=`, or a path through something that is not a section.
    """
    for word in overrides:
        dotted, equals, text = word.partition("=")
        where = f"command line '{word}'"
        if not equals or not all(dotted.split(".")):
            raise RecipeError(
                "not an override", remedy="write it as key=value, e.g. optim.learning_rate=1e-4", where=where
            )
        try:
            value = yaml.load(text, _Loader)  # a SafeLoader
        except yaml.YAMLError as error:
            raise RecipeError("the value is not valid YAML", remedy="put the value in quotes", where=where) from error
        *parents, last = (int(part) if part.isdigit() else part for part in dotted.split("."))
        target: Any = document.values
        for part in parents:
            if isinstance(target, dict) and isinstance(part, str):
                if target.get(part) is None:
                    target[part] = {}
                target = target[part]
            elif isinstance(target, list) and isinstance(part, int) and part < len(target):
                target = target[part]
            else:
                target = None
        fits = (isinstance(target, dict) and isinstance(last, str)) or (
            isinstance(target, list) and isinstance(last, int) and last < len(target)
        )
        if not fits:
            raise RecipeError(
                f"'{dotted}' does not lead to a key", remedy="`ascendtune recipe schema` lists the keys", where=where
            )
        target[last] = value
        path = (*parents, last)
        for length in range(1, len(path)):
            document.places.setdefault(path[:length], where)
        for known in [known for known in document.places if known[: len(path)] == path]:
            del document.places[known]
        document.places[path] = where
