"""The docstrings below the fields of a pydantic model.

They are read on demand: pydantic's `use_attribute_docstrings` reads them when a class is defined, which takes a third
of that time, in every command that reads a recipe.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


def field_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Field -> the docstring below it, including fields of base classes of `model`."""
    docstrings: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            docstrings |= _docstrings_in(each.__module__)[each.__name__]
    return {name: text for name, text in docstrings.items() if name in model.model_fields}


@cache
def _docstrings_in(module: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {each.name: dict(_docstrings(each)) for each in tree.body if isinstance(each, ast.ClassDef)}


def _docstrings(of: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(of.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
