"""Writes docs/recipe.md from the recipe's types: `python docs/generate.py`. A test fails when it is out of date."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ascendtune.core.field_docstrings import field_docstrings
from ascendtune.data.spec import DatasetSpec
from ascendtune.recipe.recipe import Recipe

TARGET = Path(__file__).with_name("recipe.md")

_HEAD = """# The recipe, key by key

Written by `python docs/generate.py` from the types that check a recipe; do not edit. On the command line any key can be
changed for one start: `ascendtune train recipe.yaml optim.learning_rate=1e-4`. `ascendtune recipe check` checks and
summarises a recipe; `ascendtune recipe schema` prints its JSON schema, with which editors complete and check.
"""
_TYPES = {str: "text", int: "integer", float: "number", bool: "true, false", dict: "mapping", types.NoneType: "null"}
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def recipe_page() -> str:
    """The whole page."""
    data_set = [f"## A data set, in `data.train` and `data.eval`\n\n{_sentence(DatasetSpec.__doc__)}\n"]
    return "\n".join([_HEAD, *_section("", Recipe), *data_set, *_table("", DatasetSpec)])


def _section(prefix: str, model: type[BaseModel]) -> Iterator[str]:
    """A table of the model's plain keys, then each section below it."""
    yield f"## {f'`{prefix}`' if prefix else 'Top level'}\n\n{_sentence(model.__doc__)}\n"
    yield from _table(prefix, model)
    for name, field in model.model_fields.items():
        if (inner := _below(field)) is not None:
            yield from _section(_joined(prefix, name), inner)


def _table(prefix: str, model: type[BaseModel]) -> Iterator[str]:
    yield "| key | type | default | what |\n|---|---|---|---|"
    explained = field_docstrings(model)
    for name, field in model.model_fields.items():
        if _below(field) is None:
            yield _row(_joined(prefix, name), field, explained[name])
    yield ""


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _row(name: str, field: FieldInfo, explained: str) -> str:
    bounds = [
        f"{sign} {_number(getattr(item, bound))}"
        for item in field.metadata
        for bound, sign in _BOUNDS.items()
        if getattr(item, bound, None) is not None
    ]
    kind = ", ".join([_kind(field.annotation), *bounds])
    return f"| `{name}` | {kind} | {_default(field)} | {_sentence(explained)} |"


def _below(field: FieldInfo) -> type[BaseModel] | None:
    """The section that the field holds, where it holds one."""
    annotation = field.annotation
    candidates = () if typing.get_origin(annotation) is list else (annotation, *typing.get_args(annotation))
    return next((each for each in candidates if isinstance(each, type) and issubclass(each, BaseModel)), None)


def _kind(annotation: Any) -> str:
    if annotation in _TYPES:
        return _TYPES[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(arguments[0])
    if origin is typing.Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin is list:
        return "list of " + ("data sets" if arguments == (DatasetSpec,) else _kind(arguments[0]))
    if origin is dict:
        return _TYPES[dict]
    return ", ".join(_kind(each) for each in arguments if each is not types.NoneType)


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None:
        return "–"
    if isinstance(field.default, float):
        return f"`{_number(field.default)}`"
    return f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"


def _number(value: float) -> str:
    return f"{value:g}"


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    TARGET.write_text(recipe_page(), encoding="utf-8")
