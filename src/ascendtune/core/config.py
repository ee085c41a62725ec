"""From a YAML file and `a.b=c` words to a checked model, with every complaint naming file and line.

YAML is read with positions: `1e-4` is a number, a key that stands twice is an error, and each value remembers where it
came from, so that a refusal can point at it and `origins.json` can tell default, file and override apart.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from ascendtune.core.errors import RecipeError

Path_ = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


class Section(BaseModel):
    """A part of a recipe: unknown keys are errors, values never change, docstrings describe the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _a_truth_value_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and info.field_name is not None:
            kinds = _kinds_in(cls.model_fields[info.field_name].annotation)
            if bool not in kinds and (int in kinds or float in kinds):
                raise ValueError("give a number; YAML reads yes, no, on and off as true and false")
        return value


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


def read_document(path: Path) -> Document:
    """Read a YAML or JSON file.

    Raises:
        RecipeError: missing, unreadable, not YAML, not a mapping, or a key that stands twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError("no such recipe", remedy=_missing_file_remedy(path), where=path) from None
    except IsADirectoryError:
        raise RecipeError(
            "this is a directory, not a recipe",
            remedy="give the YAML file; a run is resumed with its recipe.yaml",
            where=path,
        ) from None
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"not UTF-8 text (byte {error.start})", remedy="save the recipe as UTF-8", where=path
        ) from error
    except OSError as error:
        raise RecipeError(
            f"cannot be read: {error.strerror}", remedy="check the path and its permissions", where=path
        ) from error
    # JSON may be indented with tabs, which YAML refuses; in a JSON string a tab is always escaped.
    return parse_document(text.replace("\t", " ") if path.suffix.lower() == ".json" else text, str(path))


def parse_document(text: str, source: str) -> Document:
    """`read_document` for text; `source` is the name used in messages."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise RecipeError("the recipe is empty", remedy="`ascendtune init` writes one to start from", where=source)
        if not isinstance(node, yaml.MappingNode):
            raise RecipeError(
                "the recipe is not a mapping of keys to values", remedy="write it as `key: value` lines", where=source
            )
        document = Document({}, source)
        document.values = _plain(loader, node, document, ())
        return document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        raise RecipeError(
            f"not valid YAML: {error.problem or error.context}",
            remedy="check indentation, colons and quotes at this line",
            where=where,
        ) from error
    except yaml.YAMLError as error:
        what = " ".join(str(error).split())
        raise RecipeError(
            f"not valid YAML: {what}", remedy="check the file for stray characters", where=source
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


def validate(model: type[Model], document: Document) -> Model:
    """Check values against a pydantic model.

    Raises:
        RecipeError: all complaints at once; each with its place and, for an unknown key, the nearest valid one.
    """
    try:
        return model.model_validate(document.values)
    except ValidationError as error:
        complaints = [_complaint(model, document, item) for item in error.errors(include_url=False)]
    first, *others = (
        RecipeError(item.what, remedy=item.remedy, where=item.where) for item in dict.fromkeys(complaints)
    )
    raise RecipeError(first.what, remedy=first.remedy, where=first.where, further=others) from None


@dataclass(frozen=True)
class _Complaint:
    where: str
    what: str
    remedy: str


def _complaint(model: type[BaseModel], document: Document, item: Mapping[str, Any]) -> _Complaint:
    # Pydantic puts union members and validators' names into the location; only what stands in the file is a path.
    path = _existing_path(document.values, item["loc"])
    where, dotted = document.place(path), ".".join(map(str, path))
    kind = item["type"]
    if kind == "extra_forbidden":
        valid = keys_of(model, path[:-1])
        return _Complaint(where, f"unknown key '{dotted}'", _nearest(str(path[-1]), valid, path[:-1], model))
    if kind == "missing":
        missing = ".".join(map(str, item["loc"]))
        return _Complaint(where, f"the key '{missing}' is missing", f"add it under '{dotted}'" if dotted else "add it")
    if kind == "value_error" and isinstance(error := item.get("ctx", {}).get("error"), Contradiction):
        at = document.place(error.path) if error.path else where
        return _Complaint(at, error.what, error.remedy)
    value = item.get("input")
    return _Complaint(where, f"'{dotted}: {_short(value)}' is not possible", _expectation(item))


class Contradiction(ValueError):
    """Raised in a model's validator: values that are possible alone but not together, or in this version."""

    def __init__(self, what: str, *, remedy: str, path: Path_ = ()) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        self.path = path


def _existing_path(values: Any, location: Iterable[str | int]) -> Path_:
    path: list[str | int] = []
    for part in location:
        inside = part in values if isinstance(values, dict) else False
        if isinstance(values, list) and isinstance(part, int):
            inside = part < len(values)
        if inside:
            values = values[part]
            path.append(part)
    return tuple(path)


def keys_of(model: type[BaseModel], path: Path_) -> list[str]:
    """The valid keys at `path` below `model`; list indices in the path are skipped."""
    found: list[type[BaseModel]] = [model]
    for part in path:
        if isinstance(part, int):
            continue
        found = [
            inner
            for outer in found
            if part in outer.model_fields
            for inner in _models_in(outer.model_fields[part].annotation)
        ]
    return [name for each in found for name in each.model_fields]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [found for argument in typing.get_args(annotation) for found in _models_in(argument)]


def _kinds_in(annotation: Any) -> set[Any]:
    """The classes in an annotation, `int | None` and the like taken apart."""
    arguments = typing.get_args(annotation)
    return {kind for argument in arguments for kind in _kinds_in(argument)} if arguments else {annotation}


def _nearest(key: str, valid: list[str], parent: Path_, model: type[BaseModel]) -> str:
    if close := difflib.get_close_matches(key, valid, n=1, cutoff=0.6):
        return f"did you mean '{'.'.join(map(str, (*parent, close[0])))}'?"
    # A right key at the wrong level is as common as a misspelt one.
    for section in model.model_fields:
        inner = keys_of(model, (section,))
        if (*parent,) != (section,) and (close := difflib.get_close_matches(key, inner, n=1, cutoff=0.8)):
            return f"did you mean '{section}.{close[0]}'?"
    return f"valid here: {', '.join(valid)}" if valid else "nothing can stand below this key"


def _expectation(item: Mapping[str, Any]) -> str:
    message = str(item["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    if item["type"] == "literal_error":
        expected = re.findall(r"'([^']*)'", item["ctx"]["expected"])
        close = difflib.get_close_matches(str(item.get("input")), expected, n=1, cutoff=0.6)
        suggestion = f"did you mean '{close[0]}'? " if close else ""
        return f"{suggestion}choose one of: {', '.join(expected)}"
    if item["type"] == "model_type":
        return "it is a section: write its keys below it, or leave it out"
    return f"it {message}" if message.startswith("should") else message


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, str) else value
    return text if len(text) <= 60 else text[:57] + "..."


def origins_of(model: BaseModel, document: Document, path: Path_ = ()) -> dict[str, str]:
    """For every leaf of the checked model: `file:line`, `command line '…'` or `default`."""
    origins: dict[str, str] = {}
    for name in type(model).model_fields:
        value, here = getattr(model, name), (*path, name)
        if isinstance(value, BaseModel):
            origins |= origins_of(value, document, here)
        else:
            origins[".".join(map(str, here))] = document.places.get(here, "default")
    return origins


def to_yaml(model: BaseModel) -> str:
    """The model with every default filled in, in the order of its fields."""
    return yaml.safe_dump(model.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def _missing_file_remedy(path: Path) -> str:
    folder = path.parent
    names = (
        [entry.name for entry in folder.iterdir() if entry.suffix in (".yaml", ".yml", ".json")]
        if folder.is_dir()
        else []
    )
    if close := difflib.get_close_matches(path.name, names, n=1):
        return f"did you mean '{folder / close[0]}'?"
    return "check the path; `ascendtune init` writes a recipe"
