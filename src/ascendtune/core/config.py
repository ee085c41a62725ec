"""Converts a document's plain values to a checked model; every error names file and line."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ascendtune.core.document import Document, Path_
from ascendtune.core.errors import MOST_ERRORS_SHOWN, RecipeError, combined_error
from ascendtune.core.field_docstrings import field_docstrings
from ascendtune.core.suggest import closest, did_you_mean
from ascendtune.core.yaml_faults import FULL_WIDTH_COLON

Model = TypeVar("Model", bound=BaseModel)

MOST = 1_000_000_000
"""Upper bound of counts without another one: larger values are typing errors and would overflow."""

_UNKNOWN_KEY = "unknown-recipe-key"

_BOOLEAN_WORDS = "YAML reads yes, no, on and off as true and false"


class Section(BaseModel):
    """A part of a recipe: unknown keys are errors, values never change, docstrings describe the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    unsupported_keys: ClassVar[Mapping[str, str]] = {}
    """Of the outermost section: unsupported keys, at any level, and the remedy for each."""

    @field_validator("*", mode="before")
    @classmethod
    def _a_boolean_is_not_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and info.field_name is not None:
            kinds = _kinds_in(cls.model_fields[info.field_name].annotation)
            if bool not in kinds and (int in kinds or float in kinds):
                raise ValueError("give a number")
        return value

    def contradictions(self) -> Iterable[Contradiction]:
        """Values that are valid separately but not together; all are reported at once."""
        return ()

    @model_validator(mode="after")
    def _parts_go_together(self) -> Self:
        if contradictions := [*self.contradictions()]:
            contradictions[0].further = contradictions[1:]
            raise contradictions[0]
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, text in field_docstrings(cls).items():
            properties[name]["description"] = text
        return schema


def validate(model: type[Model], document: Document) -> Model:
    """Check values against a pydantic model.

    Raises:
        RecipeError: all errors at once; each with its place and, for an unknown key, the most similar valid one.
    """
    try:
        return model.model_validate(document.values)
    except ValidationError as error:
        items = [each for item in _without_other_kinds(error.errors(include_url=False)) for each in _apart(item)]
    items.sort(key=lambda item: line_of(document.place(_existing_path(document.values, item["loc"]))))
    # The search for a similar key takes half a millisecond, so it is done only for errors that are shown.
    complaints = [_complaint(model, document, item) for item in items[:MOST_ERRORS_SHOWN]]
    complaints = sorted(_one_for_each_list(_one_for_each_value(complaints)), key=lambda item: line_of(item.where))
    errors = [RecipeError(item.what, code=item.code, remedy=item.remedy, where=item.where) for item in complaints]
    raise combined_error(errors, left_out=len(items[MOST_ERRORS_SHOWN:]), where=document.source) from None


def line_of(where: str) -> float:
    """The line of `file:line`, to sort by; infinity for a place without a line."""
    line = where.rpartition(":")[2]
    return int(line) if line.isdecimal() else float("inf")


@dataclass(frozen=True)
class _Complaint:
    where: str
    what: str
    remedy: str
    code: str
    listed_key: str = ""
    """The unknown key, if the remedy lists the valid keys of its section."""


def _without_other_kinds(items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Remove errors of other union members: for a mapping the errors inside count, not that it is not a literal."""
    sections = {item["loc"][:-2] for item in items if len(item["loc"]) > 2}
    return [
        item
        for item in items
        if not (
            isinstance(item.get("input"), dict) and item["type"] == "literal_error" and item["loc"][:-1] in sections
        )
    ]


def _apart(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """One error for each contradiction that a section has reported."""
    error = item.get("ctx", {}).get("error")
    further = error.further if isinstance(error, Contradiction) else ()
    return [item, *({**item, "ctx": {"error": each}} for each in further)]


def _one_for_each_value(complaints: Iterable[_Complaint]) -> list[_Complaint]:
    """Join the errors of one value, one per type that it may have, into one error with all remedies."""
    same: dict[tuple[str, str, str], list[_Complaint]] = {}
    for item in dict.fromkeys(complaints):
        same.setdefault((item.where, item.what, item.code), []).append(item)
    return [replace(each[0], remedy="; or ".join(item.remedy for item in each)) for each in same.values()]


def _one_for_each_list(complaints: Iterable[_Complaint]) -> list[_Complaint]:
    """Join unknown keys of one section without a similar valid key into one error with the list of valid keys."""
    by_list: dict[tuple[str, ...], list[_Complaint]] = {}
    for item in complaints:
        by_list.setdefault((item.remedy,) if item.listed_key else (item.remedy, item.what, item.where), []).append(item)
    return [first if not more else _with_all_keys([first, *more]) for first, *more in by_list.values()]


def _with_all_keys(complaints: Sequence[_Complaint]) -> _Complaint:
    keys = ", ".join(f"'{item.listed_key}'" for item in complaints)
    return _Complaint(complaints[0].where, f"unknown keys {keys}", complaints[0].remedy, _UNKNOWN_KEY)


def _complaint(model: type[BaseModel], document: Document, item: Mapping[str, Any]) -> _Complaint:
    # Pydantic adds union members and validator names to the location; only parts that exist in the file make the path.
    path = _existing_path(document.values, item["loc"])
    where, dotted = document.place(path), ".".join(map(str, path))
    kind = item["type"]
    if kind == "extra_forbidden":
        what = f"unknown key '{dotted}'"
        if nested := _nested(path, model):
            return _Complaint(where, what, _remedy_for_dots(nested, model), _UNKNOWN_KEY)
        if remedy := _remedy_for_name(path, model):
            return _Complaint(where, what, remedy, _UNKNOWN_KEY)
        if valid := keys_of(model, path[:-1]):
            return _Complaint(where, what, f"valid keys: {', '.join(valid)}", _UNKNOWN_KEY, listed_key=dotted)
        return _Complaint(where, what, "this key cannot have keys below it", _UNKNOWN_KEY)
    if kind == "missing":
        missing = ".".join(map(str, item["loc"]))
        remedy = f"add it under '{dotted}'" if dotted else "add it"
        return _Complaint(where, f"the key '{missing}' is missing", remedy, "recipe-key-missing")
    if kind == "value_error" and isinstance(error := item.get("ctx", {}).get("error"), Contradiction):
        at = document.place(error.path) if error.path else where
        return _Complaint(at, error.what, error.remedy, error.code)
    value = item.get("input")
    what = f"'{dotted}: {_short(value)}' is not valid" if dotted else f"'{_short(value)}' is not a mapping of keys"
    return _Complaint(where, what, _expectation(item), "invalid-value")


class Contradiction(ValueError):
    """Raised by a validator: values that are valid separately but not together, or not supported in this version."""

    def __init__(self, what: str, *, code: str, remedy: str, path: Path_ = ()) -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.remedy = remedy
        self.path = path
        self.further: Sequence[Contradiction] = ()
        """Other contradictions of the same section."""


def other_names(remedies: Mapping[str, str]) -> BeforeValidator:
    """A validator for a field with known other names and unsupported values.

    Args:
        remedies: name in lower case -> remedy.
    """

    def suggest_native(value: Any) -> Any:
        if isinstance(value, str) and (remedy := remedies.get(value.lower())):
            raise Contradiction(f"'{value}' is not a value of this key", code="invalid-value", remedy=remedy)
        return value

    return BeforeValidator(suggest_native)


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
    models: list[type[BaseModel]] = [model]
    for part in path:
        if isinstance(part, int):
            continue
        models = [
            inner
            for outer in models
            if part in outer.model_fields
            for inner in sections_in(outer.model_fields[part].annotation)
        ]
    return [name for each in models for name in each.model_fields]


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The models in an annotation, `A | B | None` and lists taken apart."""
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [found for argument in typing.get_args(annotation) for found in sections_in(argument)]


def _kinds_in(annotation: Any) -> set[Any]:
    """The classes in an annotation, `int | None` and the like taken apart."""
    arguments = typing.get_args(annotation)
    return {kind for argument in arguments for kind in _kinds_in(argument)} if arguments else {annotation}


def _nested(path: Path_, model: type[BaseModel]) -> Path_ | None:
    """The path that a last key with dots means, as on the command line; None if it leads into no section."""
    nested = (*path[:-1], *str(path[-1]).split("."))
    return nested if len(nested) > len(path) and keys_of(model, nested[:-1]) else None


def _remedy_for_dots(nested: Path_, model: type[BaseModel]) -> str:
    valid = keys_of(model, nested[:-1])
    if nested[-1] in valid:
        *parents, key = (str(part) for part in nested if not isinstance(part, int))
        return f"nest the keys: '{': {'.join(parents)}: {{{key}: …}}{'}' * (len(parents) - 1)}'"
    remedy = _remedy_for_name(nested, model) or f"valid keys: {', '.join(valid)}"
    return f"nest keys in a file, 'a: {{b: …}}' for a.b; {remedy}"


def _remedy_for_name(path: Path_, model: type[BaseModel]) -> str | None:
    """The remedy for an unknown key: a known one for its name, or the most similar valid key; None without either."""
    key, *parent = str(path[-1]), *path[:-1]
    if issubclass(model, Section) and (remedy := model.unsupported_keys.get(key.lower())):
        return remedy
    if name := closest(key, keys_of(model, path[:-1])):
        return f"did you mean '{'.'.join(map(str, (*parent, name)))}'?"
    # A valid key at the wrong level is as common as a misspelt one.
    for section in model.model_fields:
        inner = keys_of(model, (section,))
        if (*parent,) != (section,) and (name := closest(key, inner, cutoff=0.8)):
            return f"did you mean '{section}.{name}'?"
    return None


_KINDS = {"bool": "true or false", "int": "a whole number", "float": "a number", "string": "text"}
"""The beginning of pydantic's names of type errors -> the expected kind of value."""


def _expectation(item: Mapping[str, Any]) -> str:
    given = item.get("input")
    message = str(item["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    kind, _, fault = str(item["type"]).partition("_")
    if item["type"] == "literal_error":
        expected = re.findall(r"'([^']*)'", item["ctx"]["expected"])
        message = f"{did_you_mean(str(given), expected)} choose one of: {', '.join(expected)}".lstrip()
    elif item["type"] in ("list_type", "tuple_type"):
        return "write a list" + (f": [{given}]" if isinstance(given, str | int | float) else "")
    elif kind in _KINDS and fault in ("type", "parsing", "from_float"):
        message = f"write {_KINDS[kind]}{_in_quotes(given) if kind == 'string' else ''}"
    elif item["type"] == "too_short":
        return f"give at least {item['ctx']['min_length']}"
    elif item["type"] == "model_type":
        return _remedy_for_section(given)
    elif message.startswith("should"):
        message = f"it {message}"
    return f"{message}; {_BOOLEAN_WORDS}" if isinstance(given, bool) else message


def _in_quotes(given: Any) -> str:
    """Advice to quote a value that YAML would read as another type than text."""
    if isinstance(given, dict | list):
        return "; in quotes if it begins with { or ["
    if type(given) not in (int, float):
        return ""
    # The shell removes the outer quotes. The spelling of a float, such as 1e5, is not known here.
    shown = _short(given) if isinstance(given, int) else "…"
    return f""", in quotes: "{shown}" (on the command line: '"{shown}"')"""


def _remedy_for_section(given: Any) -> str:
    # `epochs:3` is a text: a colon ends a key only where a space follows.
    if isinstance(given, str) and (found := re.match(r"([\w.-]+) *([:：])", given)):
        return FULL_WIDTH_COLON if found[2] == "：" else f"write a space after the colon: '{found[1]}: …'"
    return "it is a section: write its keys below it, or leave it out"


def _short(value: Any) -> str:
    # Python refuses to write integers of more than 4,300 digits.
    is_endless = type(value) is int and value.bit_length() > 1000
    words = {True: "true", False: "false", None: "null"}
    as_in_yaml = words[value] if value is None or isinstance(value, bool) else repr(value)
    text = "a number of too many digits" if is_endless else value if isinstance(value, str) else as_in_yaml
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
